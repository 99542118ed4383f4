"""Texts as lists of units (paragraphs or sentences), and passages cut from them.

A unit carries the blanks that follow it, so "".join(units) is the text again.
"""

import random
import re

SENTENCE_END = re.compile(r'(?<=[.!?])["\')\u2019\u201d\]]*\s+(?=["\'(\u2018\u201c\[]?[A-Z])')
LONGEST_UNIT = 1500  # characters; a longer paragraph is cut into sentences


def seeded(*parts):
    """A random.Random that depends on `parts` alone, on every machine."""
    return random.Random(":".join(map(str, parts)))


def _cut(pattern, text):
    begin = 0
    for match in pattern.finditer(text):
        yield text[begin : match.end()]
        begin = match.end()
    if begin < len(text):
        yield text[begin:]


def sentences(text):
    return list(_cut(SENTENCE_END, text))


def units_of(text):
    """Paragraphs of `text`; sentences where a paragraph is long; hard cuts where a sentence is."""
    units = []
    for paragraph in _cut(re.compile(r"\n{2,}"), text):
        parts = [paragraph] if len(paragraph) <= LONGEST_UNIT else sentences(paragraph)
        for part in parts:
            while len(part) > 2 * LONGEST_UNIT:
                at = part.rfind("\n", 1, LONGEST_UNIT) + 1 or part.rfind(" ", 1, LONGEST_UNIT) + 1 or LONGEST_UNIT
                units.append(part[:at])
                part = part[at:]
            units.append(part)
    return units


def cut(units, length_of):
    """Joins units into passages of about length_of() characters each, in order; the rest comes last."""
    passages, parts, size, goal = [], [], 0, length_of()
    for unit in units:
        if parts and size + len(unit) > goal:
            passages.append("".join(parts).strip("\n ") + "\n")
            parts, size, goal = [], 0, length_of()
        parts.append(unit)
        size += len(unit)
    if parts:
        passages.append("".join(parts).strip("\n ") + "\n")
    return [passage for passage in passages if passage.strip()]


class Pool:
    """Whole documents to draw passages from, by length."""

    def __init__(self, texts):
        self.documents = [units_of(text) for text in texts]
        self.weights = [sum(map(len, units)) for units in self.documents]
        if not self.documents:
            raise ValueError("a pool of passages needs a document")

    def draw(self, rng, characters):
        """Consecutive units of about `characters` in all, as a list; fewer only where a document is shorter."""
        units = rng.choices(self.documents, self.weights)[0]
        size, start = 0, rng.randrange(len(units))
        # Near the end of a document a passage starts earlier, to have its length.
        while start > 0 and sum(map(len, units[start:])) < characters:
            start -= max(1, len(units) // 20)
        start = max(start, 0)
        chosen = []
        for unit in units[start:]:
            if 2 * size >= characters and size + len(unit) > characters:
                break
            chosen.append(unit)
            size += len(unit)
        return chosen

    def text(self, rng, characters):
        return "".join(self.draw(rng, characters)).strip("\n ")
