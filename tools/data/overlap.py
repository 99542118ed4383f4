"""Finds what held-out documents share with training text: equal runs of 13 words."""

import re

WORDS = 13
WORD = re.compile(r"\w+")


def spans(text):
    """(word in lower case, begin, end) of each word."""
    return [(m.group().lower(), m.start(), m.end()) for m in WORD.finditer(text)]


def grams(text):
    """Hashes of all runs of 13 words; equal within one process only."""
    words = [w.lower() for w in WORD.findall(text)]
    return [hash(tuple(words[i : i + WORDS])) for i in range(len(words) - WORDS + 1)]


class HeldOut:
    """The runs of words of all held-out documents."""

    def __init__(self, texts):
        self.known = set()
        for text in texts:
            self.known.update(grams(text))

    def count(self, text):
        return sum(gram in self.known for gram in grams(text))

    def shared(self, text):
        """Ranges of characters of `text`, ascending, that held-out documents contain too."""
        words = spans(text)
        plain = [word for word, _, _ in words]
        ranges = []
        for i in range(len(words) - WORDS + 1):
            if hash(tuple(plain[i : i + WORDS])) in self.known:
                begin, end = words[i][1], words[i + WORDS - 1][2]
                if ranges and begin <= ranges[-1][1]:
                    ranges[-1][1] = end
                else:
                    ranges.append([begin, end])
        return ranges

    def without_shared(self, units):
        """The units that no shared range touches, and how many characters were left out."""
        ranges, kept, lost, at = self.shared("".join(units)), [], 0, 0
        for unit in units:
            end = at + len(unit)
            while ranges and ranges[0][1] <= at:
                ranges.pop(0)
            if ranges and ranges[0][0] < end:
                lost += len(unit)
            else:
                kept.append(unit)
            at = end
        return kept, lost
