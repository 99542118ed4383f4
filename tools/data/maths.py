"""Arithmetic and small word problems, worked step by step."""

from facts import NAMES, THINGS


def long_addition(rng):
    a, b = rng.randrange(100, 100_000), rng.randrange(100, 100_000)
    steps, carry, x, y, place = [], 0, a, b, 1
    while x or y or carry:
        total = x % 10 + y % 10 + carry
        note = f" plus the carried {carry}" if carry else ""
        steps.append(f"Digit {place}: {x % 10} + {y % 10}{note} = {total}, write {total % 10}, carry {total // 10}.")
        carry, x, y, place = total // 10, x // 10, y // 10, place + 1
    return f"What is {a} + {b}?", "\n".join(steps) + f"\nSo {a} + {b} = {a + b}."


def long_multiplication(rng):
    a, b = rng.randrange(12, 1000), rng.randrange(12, 100)
    tens, ones = b // 10 * 10, b % 10
    return (
        f"Calculate {a} * {b}.",
        f"Split {b} into {tens} and {ones}.\n{a} * {tens} = {a * tens}.\n{a} * {ones} = {a * ones}.\n"
        f"{a * tens} + {a * ones} = {a * b}.\nSo {a} * {b} = {a * b}.",
    )


def division(rng):
    b, q = rng.randrange(3, 60), rng.randrange(5, 400)
    r = rng.randrange(b)
    a = b * q + r
    return (
        f"Divide {a} by {b}, with remainder.",
        f"{b} * {q} = {b * q}.\n{a} - {b * q} = {r}, which is less than {b}.\nSo {a} / {b} = {q} remainder {r}.",
    )


def chain(rng):
    value = rng.randrange(5, 60)
    text, steps = str(value), []
    for _ in range(rng.randint(3, 7)):
        operation, other = rng.choice("+-*"), rng.randrange(2, 10)
        new = {"+": value + other, "-": value - other, "*": value * other}[operation]
        steps.append(f"{value} {operation} {other} = {new}.")
        text = f"({text}) {operation} {other}"
        value = new
    return f"Evaluate {text}.", "\n".join(steps) + f"\nThe result is {value}."


def shopping(rng):
    name, other = rng.sample(NAMES, 2)
    first, second = rng.sample(THINGS, 2)
    n, m, p, q = rng.randint(2, 9), rng.randint(2, 9), rng.randint(3, 40), rng.randint(3, 40)
    cost = n * p + m * q
    paid = (cost // 50 + 1) * 50
    return (
        f"{name} buys {n} {first}s at {p} crowns each and {m} {second}s at {q} crowns each for {other}, and pays with "
        f"{paid} crowns. How much change does {name} get?",
        f"The {first}s cost {n} * {p} = {n * p} crowns.\nThe {second}s cost {m} * {q} = {m * q} crowns.\n"
        f"Together {n * p} + {m * q} = {cost} crowns.\nThe change is {paid} - {cost} = {paid - cost} crowns.",
    )


def journey(rng):
    speed, hours, slower, more = rng.randint(30, 90), rng.randint(2, 6), rng.randint(10, 29), rng.randint(2, 5)
    first, second = speed * hours, slower * more
    return (
        f"A train runs {hours} hours at {speed} km an hour and then {more} hours at {slower} km an hour. "
        "How far does it go?",
        f"First part: {hours} * {speed} = {first} km.\nSecond part: {more} * {slower} = {second} km.\n"
        f"In all {first} + {second} = {first + second} km.",
    )


def sharing(rng):
    name, people, each, left = rng.choice(NAMES), rng.randint(3, 12), rng.randint(4, 30), rng.randint(1, 9)
    total = people * each + left
    return (
        f"{name} has {total} nuts, keeps {left} and shares the others among {people} children equally. "
        "How many does each child get?",
        f"To share: {total} - {left} = {total - left} nuts.\nEach child gets {total - left} / {people} = {each} nuts.",
    )


def equation(rng):
    a, x, b = rng.randint(2, 19), rng.randint(-20, 40), rng.randint(1, 90)
    c = a * x + b
    return (
        f"Solve {a}x + {b} = {c} for x.",
        f"Subtract {b} on both sides: {a}x = {c} - {b} = {c - b}.\nDivide by {a}: x = {c - b} / {a} = {x}.\n"
        f"Check: {a} * {x} + {b} = {a * x + b}.",
    )


KINDS = (long_addition, long_multiplication, division, chain, shopping, journey, sharing, equation)


def problem(rng):
    """(question, worked answer)"""
    return rng.choice(KINDS)(rng)


def document(rng, characters):
    """A talk of problems, or a plain list of them, of about `characters`."""
    pairs, size = [], 0
    while size < characters:
        pairs.append(problem(rng))
        size += sum(map(len, pairs[-1]))
    if rng.random() < 0.3:
        return None, "".join(f"Problem {i}. {q}\n{a}\n\n" for i, (q, a) in enumerate(pairs, 1))
    messages = []
    for question, answer in pairs:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return messages, None
