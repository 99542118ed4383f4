"""Documents that ask at the end for facts planted anywhere in prose."""

import facts
from passages import sentences

READY = ("I have read it.", "Done. What would you like to know?", "All right, I have the text.", "Yes, go on.")
INTRODUCTIONS = (
    "Read the following text. I shall ask about it afterwards.\n\n",
    "Here is a long text with some facts hidden in it:\n\n",
    "Keep in mind what you find in this text.\n\n",
    "",
)
SYSTEMS = ("You are a helpful assistant.", "Answer briefly and exactly.", "You remember everything you are told.")
PLAIN_ENDS = (
    "\n\nQuestion: {question}\nAnswer: {answer}\n",
    "\n\nQ: {question}\nA: {answer}\n",
    "\n\n{question} {answer}\n",
)


def planted(rng, units, chosen):
    """`units` with the facts' statements between them, at random depths over the whole length."""
    units = list(units)
    places = sorted((rng.randrange(len(units) + 1), i) for i in range(len(chosen)))
    for at, i in reversed(places):
        statement = chosen[i].statement
        before = units[at - 1] if at else ""
        gap = "" if not before or before[-1].isspace() else " "
        after = "\n\n" if before.endswith("\n") else " "
        units.insert(at, f"{gap}{statement}{after}")
    return "".join(units).strip("\n ")


def sentence_units(pool, rng, characters):
    """A passage as sentences, so that facts may stand anywhere in it."""
    return [s for unit in pool.draw(rng, characters) for s in sentences(unit)]


def answer_of(rng, fact):
    return fact.short if rng.random() < 0.5 else fact.full


def document(rng, pool, characters):
    """(messages, None) or (None, text) of about `characters`."""
    chosen = facts.draw(rng, rng.choice((1, 1, 2, 3, 4, 6, 8)))
    asked = rng.sample(chosen, min(len(chosen), rng.choice((1, 1, 2, 3))))
    text = planted(rng, sentence_units(pool, rng, characters), chosen)
    if rng.random() < 0.25:
        end = rng.choice(PLAIN_ENDS)
        return None, text + "".join(end.format(question=f.question, answer=answer_of(rng, f)) for f in asked)
    messages = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": rng.choice(SYSTEMS)})
    first = rng.choice(INTRODUCTIONS) + text
    if rng.random() < 0.5:  # the first question in the message of the text
        messages.append({"role": "user", "content": f"{first}\n\n{asked[0].question}"})
    else:
        messages += [{"role": "user", "content": first}, {"role": "assistant", "content": rng.choice(READY)}]
        messages.append({"role": "user", "content": asked[0].question})
    messages.append({"role": "assistant", "content": answer_of(rng, asked[0])})
    for fact in asked[1:]:
        messages.append({"role": "user", "content": fact.question})
        messages.append({"role": "assistant", "content": answer_of(rng, fact)})
    return messages, None
