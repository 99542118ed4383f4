#!/usr/bin/env python3
"""Builds the training mix from packages: train.jsonl, heldout-seen.jsonl, heldout-unseen.jsonl, manifest.json.

    tools/data/build.py [--out DIR] [--assets DIR] [--characters N] [--seed N] [--share KIND=SHARE]

The same packages, options and programs give the same bytes. Finished parts are kept until the whole is
done, so an interrupted run goes on where it was; a run with nothing to do does nothing.
"""

import argparse
import collections
import contextlib
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import shutil
import sys

import archives
import mix
import sources
import talks
from archives import DataError
from overlap import WORDS, HeldOut
from passages import seeded, units_of

CACHE = pathlib.Path(
    os.environ.get("COPPICE_CACHE")
    or pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "coppice"
)
PROGRAMS = ("archives", "build", "clean", "facts", "maths", "mix", "overlap", "passages", "recall", "repeats")
SPLITS = ("train", "heldout-seen", "heldout-unseen")


def say(message):
    print(f"data: {message}", file=sys.stderr, flush=True)


def write_whole(path, lines):
    """Writes lines so that the file is there whole or not at all."""
    part = path.with_suffix(path.suffix + ".part")
    try:
        with open(part, "w", encoding="utf-8", newline="\n") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise DataError(f"could not write {path}: {error.strerror}") from error


@contextlib.contextmanager
def alone(out):
    """Holds off a second run on the same folder until this one ends."""
    with open(out.with_name(out.name + ".lock"), "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def lines_of(rows):
    return (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def key_of(options):
    """Changes when packages, programs or options do."""
    names = sorted([f"{n}.py" for n in (*PROGRAMS, "sources", "talks")] + ["packages.tsv"])
    digest = hashlib.sha256(json.dumps([options.seed, options.characters, options.shares]).encode())
    for name in names:
        digest.update((archives.FOLDER / name).read_bytes())
    return digest.hexdigest()


def finished(out, key):
    """Whether the outputs of exactly this run lie there unharmed."""
    try:
        manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))
        return manifest["key"] == key and all(
            archives.sha256_of(out / name) == entry["sha256"] for name, entry in manifest["outputs"].items()
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def spoken_text(document):
    return "\n".join(talks.turns_of(document)) if document.source == "dialogue" else document.text


def read_documents(options):
    """All source documents; what held-out ones share with the others is taken out of the others."""
    packages = archives.packages()
    folder = pathlib.Path(options.assets) / "text"
    documents = sources.read_all(lambda name: archives.checked(packages[name], folder))
    held_out = HeldOut(spoken_text(d) for d in documents if d.split != sources.TRAIN)
    kept, lost = [], collections.Counter()
    for document in documents:
        if document.split == sources.TRAIN:
            if document.source == "dialogue":
                if held_out.count(spoken_text(document)):
                    lost[document.source] += len(document.text)
                    continue
            else:
                units, less = held_out.without_shared(units_of(document.text))
                document.text = "".join(units)
                lost[document.source] += less
        kept.append(document)
    return kept, lost


class Parts:
    """Steps whose results are kept in a folder until all is done."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def rows(self, name, make):
        path = self.folder / f"{name}.jsonl"
        if not path.exists():
            say(name)
            write_whole(path, lines_of(make()))
        return rows_of(path)


def make_rows(parts, options):
    """(rows by split, characters left out of each source for the sake of the held-out ones)"""

    def source_rows():
        documents, lost = read_documents(options)
        return [dict(lost)] + [vars(d) for d in documents]

    lost, *rows = parts.rows("sources", source_rows)
    documents = [sources.Document(**row) for row in rows]
    total = min(options.characters, int(mix.long_characters(documents) / max(options.shares["long"], 1e-9)))
    train = []
    for kind, share in options.shares.items():
        wanted = int(share * total)
        train += parts.rows(f"train-{kind}", functools.partial(mix.train_rows, documents, kind, wanted, options.seed))
    seeded(options.seed, "order").shuffle(train)
    seen = parts.rows("heldout-seen", lambda: mix.seen_rows(documents, options.seed))
    unseen = parts.rows("heldout-unseen", lambda: mix.unseen_rows(documents, options.seed))
    return documents, {"train": train, "heldout-seen": seen, "heldout-unseen": unseen}, lost


def row_text(row):
    return row["text"] if "text" in row else "\n".join(m["content"] for m in row["messages"])


def check_overlap(documents, train):
    """Leaves out training rows that still share a run of words; says what was found."""
    say("comparing training rows with held-out documents")
    held_out = HeldOut(spoken_text(d) for d in documents if d.split != sources.TRAIN)
    clean = [row for row in train if not held_out.count(row_text(row))]
    found = sum(held_out.count(row_text(row)) for row in clean)
    return clean, {
        "words": WORDS,
        "heldout_runs": len(held_out.known),
        "training_rows_left_out": len(train) - len(clean),
        "runs_found_in_train": found,
    }


def counts(rows):
    by_source = collections.defaultdict(lambda: {"documents": 0, "characters": 0})
    for row in rows:
        by_source[row["source"]]["documents"] += 1
        by_source[row["source"]]["characters"] += mix.size_of(row)
    return dict(sorted(by_source.items()))


def manifest_of(out, key, options, splits, overlap, lost):
    packages = archives.packages()
    by_split = {split: counts(rows) for split, rows in splits.items()}
    names = sorted({name for split in by_split.values() for name in split})
    entries = {}
    for name in names:
        used = sources.PACKAGES.get(name, [])
        entries[name] = {
            "packages": [vars(packages[p]) for p in used] or "generated, over the prose of the other sources",
            **{split: by_split[split][name] for split in SPLITS if name in by_split[split]},
            "characters_left_out_for_heldout": lost.get(name, 0),
        }
    outputs = {}
    for split, rows in splits.items():
        path = out / f"{split}.jsonl"
        outputs[path.name] = {
            "sha256": archives.sha256_of(path),
            "bytes": path.stat().st_size,
            "documents": len(rows),
            "characters": sum(map(mix.size_of, rows)),
        }
    made_by = {"program": "tools/data/build.py", "seed": options.seed, "characters": options.characters}
    made_by["shares"] = options.shares
    return {"key": key, "made_by": made_by, "outputs": outputs, "overlap": overlap, "sources": entries}


def build(options):
    out, key = options.out, key_of(options)
    if finished(out, key):
        say(f"{out} is up to date")
        return
    out.mkdir(parents=True, exist_ok=True)
    work = out / f".work-{key[:12]}"
    for other in out.glob(".work-*"):
        if other != work:
            shutil.rmtree(other)
    documents, splits, lost = make_rows(Parts(work), options)
    splits["train"], overlap = check_overlap(documents, splits["train"])
    for split, rows in splits.items():
        write_whole(out / f"{split}.jsonl", lines_of(rows))
    manifest = manifest_of(out, key, options, splits, overlap, lost)
    write_whole(out / "manifest.json", [json.dumps(manifest, indent=1, ensure_ascii=False) + "\n"])
    shutil.rmtree(work)
    for name, entry in manifest["outputs"].items():
        say(f"{out / name}: {entry['documents']} documents, {entry['characters'] / 1e6:.1f} million characters")


def shares_of(changes):
    """The shares of the mix with changes such as "recall=0.1", over their sum."""
    shares = dict(mix.SHARES)
    for change in changes:
        kind, _, value = change.partition("=")
        try:
            share = float(value)
        except ValueError:
            share = -1.0
        if kind not in shares or not 0 <= share <= 1:
            raise DataError(f"--share {change}: expected KIND=SHARE with a kind of {', '.join(shares)} and 0 to 1")
        shares[kind] = share
    total = sum(shares.values())
    if total <= 0:
        raise DataError("--share: all shares are 0, expected one above")
    return {kind: round(share / total, 6) for kind, share in shares.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", default=CACHE / "data")
    parser.add_argument("--assets", default=os.environ.get("COPPICE_ASSETS") or CACHE / "assets")
    parser.add_argument("--characters", type=int, default=40_000_000, help="at most, of training text")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--share", action="append", default=[], metavar="KIND=SHARE", help="change the mix")
    options = parser.parse_args()
    if options.characters < 100_000:
        parser.error(f"--characters {options.characters}: expected at least 100000")
    try:
        options.shares = shares_of(options.share)
        options.out = pathlib.Path(os.path.abspath(options.out))
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with alone(options.out):
            build(options)
    except (DataError, OSError) as error:
        print(f"data: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
