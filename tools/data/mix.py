"""The kinds of training documents and their shares.

A row is {"id", "source", "text"} or {"id", "source", "messages"}.
"""

import maths
import recall
import repeats
import sources
import talks
from passages import Pool, cut, seeded, units_of

LONG = ("sotu", "moby-dick", "bible", "manual")  # prose that long documents and filler come from
# Shares of all characters: 60 % long documents, 25 % delayed repeats, 15 % of the rest.
SHARES = {"long": 0.60, "repeat": 0.25, "recall": 0.06, "talk": 0.04, "dialogue": 0.01, "code": 0.03, "maths": 0.01}
# Characters per token of the default model's tokenizer, chat marks included, measured and rounded down.
PER_TOKEN = {"sotu": 5.0, "moby-dick": 4.0, "bible": 4.0, "manual": 3.9, "code": 3.8, "austen": 4.3, "repeat": 4.4}
PER_TOKEN |= {"recall": 4.2, "talk": 3.1, "dialogue": 3.5, "maths": 1.75}
SHORTEST = 1500  # characters of a document
HELD_OUT_TOKENS = 8_500  # so that most parts fill a context of 8,000
HELD_OUT_GENERATED = {"repeat": 600_000, "recall": 800_000, "talk": 500_000, "maths": 100_000}


def row(name, source, messages=None, text=None):
    return {"id": name, "source": source} | ({"messages": messages} if messages else {"text": text})


def size_of(document):
    """Characters of a row."""
    if "text" in document:
        return len(document["text"])
    return sum(len(message["content"]) for message in document["messages"])


def training_tokens(rng):
    """Most documents fill 4,096 tokens, some 8,000, some are short."""
    kind = rng.random()
    if kind < 0.08:
        return 7_700
    return 3_850 if kind < 0.75 else rng.randint(1_000, 3_000)


def pieces(documents, seed, tokens_of, shortest=SHORTEST):
    """Documents cut into passages of about tokens_of(rng) tokens, as rows."""
    rows = []
    for document in documents:
        rng = seeded(seed, "cut", document.id)
        scale = PER_TOKEN[document.source]
        for i, text in enumerate(cut(units_of(document.text), lambda: int(tokens_of(rng) * scale))):
            if len(text) >= shortest:
                rows.append(row(f"{document.id}#{i}", document.source, text=text))
    return rows


def up_to(rows, characters, seed):
    """A random choice of the rows with about `characters` in all, in their order."""
    order = list(range(len(rows)))
    seeded(seed, "choose").shuffle(order)
    chosen, size = [], 0
    for i in order:
        if size >= characters:
            break
        chosen.append(i)
        size += size_of(rows[i])
    return [rows[i] for i in sorted(chosen)]


def generated(kind, characters, seed, pool, dialogues):
    """Rows of one generated kind with about `characters` in all."""
    rows, size, i = [], 0, 0
    while size < characters:
        rng = seeded(seed, kind, i)
        goal = int(training_tokens(rng) * PER_TOKEN[kind])
        if kind == "repeat":
            messages, text = repeats.document(rng, pool, goal)
        elif kind == "recall":
            messages, text = recall.document(rng, pool, goal)
        elif kind == "talk":
            messages, text = talks.early_facts(rng, dialogues, pool, goal), None
        else:
            messages, text = maths.document(rng, goal)
        rows.append(row(f"{kind}/{seed}-{i}", kind, messages, text))
        size += size_of(rows[-1])
        i += 1
    return rows


def dialogue_rows(documents, seed, tokens):
    """Real dialogues, some to a document: as lines with names, or as a conversation."""
    rows, group, size, rng = [], [], 0, seeded(seed, "dialogue")
    length = tokens * PER_TOKEN["dialogue"]
    for document in documents:
        group.append(document)
        size += len(document.text)
        if size < length:
            continue
        name = f"{group[0].id}+{len(group) - 1}"
        if rng.random() < 0.5:
            rows.append(row(name, "dialogue", text=talks.plain_dialogue(rng, group)))
        else:
            pairs = [pair for member in group for pair in talks.exchanges(talks.turns_of(member))]
            rows.append(row(name, "dialogue", messages=talks.as_messages(pairs)))
        group, size = [], 0
    return rows


def of_split(documents, split, *names):
    return [d for d in documents if d.split == split and d.source in names]


def train_rows(documents, kind, characters, seed):
    """Rows of one kind of the training mix, about `characters` in all where there is enough."""
    prose = of_split(documents, sources.TRAIN, *LONG)
    if kind == "long":
        return up_to(pieces(prose, seed, training_tokens), characters, seed)
    if kind == "code":
        files = of_split(documents, sources.TRAIN, "code")
        return up_to(pieces(files, seed, training_tokens), characters, seed)
    spoken = of_split(documents, sources.TRAIN, "dialogue")
    if kind == "dialogue":
        return up_to(dialogue_rows(spoken, seed, 3_000), characters, seed)
    return generated(kind, characters, seed, Pool([d.text for d in prose]), spoken)


def long_characters(documents):
    """How much long text there is to train on."""
    return sum(len(d.text) for d in of_split(documents, sources.TRAIN, *LONG))


def seen_rows(documents, seed):
    """Held-out documents of the kinds trained on; generated ones stand on held-out prose."""
    prose = of_split(documents, sources.SEEN, *LONG)
    spoken = of_split(documents, sources.SEEN, "dialogue")
    rows = pieces(prose + of_split(documents, sources.SEEN, "code"), seed, lambda _: HELD_OUT_TOKENS, 8_000)
    rows += dialogue_rows(spoken, seed, 3_800)
    pool = Pool([d.text for d in prose])
    for kind, characters in HELD_OUT_GENERATED.items():
        rows += generated(kind, characters, f"{seed}-held-out", pool, spoken)
    return rows


def unseen_rows(documents, seed):
    unseen = [d for d in documents if d.split == sources.UNSEEN]
    return pieces(unseen, seed, lambda _: HELD_OUT_TOKENS, 8_000)
