"""Talks: real dialogues of two people, and long talks where a fact told early is asked for late."""

import json

import facts
import maths
from passages import sentences

SELF = (
    ("My name is {}.", "What is my name?", "Your name is {}.", facts.NAMES),
    ("I live in {}.", "In which city do I live?", "You live in {}.", facts.CITIES),
    ("My dog is called {}.", "What is my dog called?", "Your dog is called {}.", facts.PETS),
    ("My favourite colour is {}.", "Which is my favourite colour?", "Your favourite colour is {}.", facts.COLOURS),
    ("I work as a {}.", "What do I work as?", "You work as a {}.", facts.JOBS),
    ("My friend {} visits me today.", "Who visits me today?", "Your friend {}.", facts.NAMES),
    ("Please remember the number {}.", "Which number did I ask you to remember?", "The number is {}.", None),
)
OPENINGS = ("Hello! {}", "Hi there. {}", "Good morning. {}", "{}", "Before we begin: {}")
THANKS = ("Nice to meet you!", "Thank you, I shall remember that.", "Good to know.", "Noted.", "All right.")
LATE = ("By the way, {}", "One more thing: {}", "Do you still remember? {}", "{}", "Back to the start. {}")


def turns_of(document):
    return json.loads(document.text)


def plain_dialogue(rng, documents):
    """Dialogues as lines with the speakers' names."""
    parts = []
    for document in documents:
        names = rng.sample(facts.NAMES, 2)
        parts.append("\n".join(f"{names[i % 2]}: {turn}" for i, turn in enumerate(turns_of(document))))
    return "\n\n* * *\n\n".join(parts) + "\n"


def exchanges(turns):
    """Pairs of user and assistant."""
    return [(turns[i], turns[i + 1]) for i in range(0, len(turns) - 1, 2)]


def as_messages(pairs):
    messages = []
    for user, assistant in pairs:
        messages += [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]
    return messages


def self_facts(rng):
    """[(what the user tells, question, answer)]"""
    chosen = []
    for told, question, answer, words in rng.sample(SELF, rng.randint(1, 4)):
        value = rng.choice(words) if words else facts.number(rng)
        if words is facts.NAMES and rng.random() < 0.5 and told.startswith("My name"):
            value += " " + rng.choice(facts.SURNAMES)
        article = told.replace(" a {}", " an {}") if value[0] in "aeio" else told
        full = answer.replace(" a {}", " an {}") if value[0] in "aeio" else answer
        chosen.append((article.format(value), question, full.format(value)))
    return chosen


def story_exchange(rng, pool):
    """A user who gives a text, and its true continuation."""
    while True:
        units = [s for unit in pool.draw(rng, rng.randint(1200, 3000)) for s in sentences(unit)]
        half = len(units) // 2
        before, after = "".join(units[:half]).strip(), "".join(units[half:]).strip()
        if before and after:
            return f"Continue this text:\n\n{before}", after


def early_facts(rng, dialogues, pool, characters):
    """Messages: facts told first (and some later), much talk of other things, the questions last."""
    known = self_facts(rng)
    first = rng.randint(1, len(known))
    pairs = [(rng.choice(OPENINGS).format(" ".join(k[0] for k in known[:first])), rng.choice(THANKS))]
    size = 0
    while size < characters:
        kind = rng.random()
        if kind < 0.5:
            new = exchanges(turns_of(rng.choice(dialogues)))[:12]
        elif kind < 0.75:
            new = [maths.problem(rng) for _ in range(rng.randint(1, 3))]
        else:
            new = [story_exchange(rng, pool)]
        pairs += new
        size += sum(len(user) + len(assistant) for user, assistant in new)
        if first < len(known) and rng.random() < 0.5:
            pairs.append((known[first][0], rng.choice(THANKS)))
            first += 1
    for told in known[first:]:
        pairs.insert(rng.randint(1, len(pairs)), (told[0], rng.choice(THANKS)))
    for _, question, answer in rng.sample(known, rng.randint(1, len(known))):
        pairs.append((rng.choice(LATE).format(question), answer))
    return as_messages(pairs)
