#!/usr/bin/env python3
"""Converters of published data sets, each on a small made sample of its layout."""

import base64
import contextlib
import importlib.util
import io
import json
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "data"))
import convert  # noqa: E402
import rows  # noqa: E402

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def human(text):
    return {"from": "human", "value": text}


def gpt(text):
    return {"from": "gpt", "value": text}


class ConvertTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.out = self.dir / "out" / "set.jsonl"

    def call(self, name, *inputs, options=(), code=0):
        """The program's documents and its standard error."""
        errors = io.StringIO()
        arguments = ["convert.py", name, *map(str, inputs), str(self.out), *map(str, options)]
        with mock.patch.object(sys, "argv", arguments), contextlib.redirect_stderr(errors):
            with contextlib.redirect_stdout(io.StringIO()):
                self.assertEqual(convert.main(), code, errors.getvalue())
        if code:
            self.assertFalse(self.out.exists())
            self.assertFalse(list(self.out.parent.glob("*.part")))
            return [], errors.getvalue()
        return [json.loads(line) for line in self.out.read_text().splitlines()], errors.getvalue()

    def sample(self, content, name="data.json"):
        path = self.dir / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def one(self, name, row):
        documents, _ = self.call(name, self.sample([row]))
        self.assertEqual(len(documents), 1)
        self.assertEqual(documents[0]["source"], name)
        return documents[0]

    def test_openr1_math_takes_the_verified_messages(self):
        row = {"problem": "1+1?", "solution": "2", "answer": "2", "uuid": "u1", "generations": ["<think>x</think>2"]}
        row["messages"] = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "<think>x</think>2"}]
        document = self.one("openr1-math", row)
        self.assertEqual(document["id"], "openr1-math/u1")
        self.assertEqual(document["messages"], row["messages"])

    def test_openr1_math_without_messages_takes_a_correct_generation(self):
        row = {"problem": "1+1?", "generations": ["3", "2"], "correctness_math_verify": [False, True]}
        self.assertEqual(self.one("openr1-math", row)["messages"][1]["content"], "2")

    def test_llava_next_places_a_named_image(self):
        row = {"id": 7, "image": "coco/1.jpg", "conversations": [human("<image>\nWhat is it?"), gpt("A cat.")]}
        document = self.one("llava-next", row)
        self.assertEqual(document["id"], "llava-next/7")
        self.assertEqual(
            document["messages"][0]["content"],
            [{"type": "image", "path": "coco/1.jpg"}, {"type": "text", "text": "What is it?"}],
        )
        self.assertEqual(document["messages"][1], {"role": "assistant", "content": "A cat."})

    def test_llava_next_keeps_rows_of_text_alone(self):
        row = {"id": "t", "image": None, "conversations": [human("Hello"), gpt("Hi")]}
        self.assertEqual(self.one("llava-next", row)["messages"][0]["content"], "Hello")

    def test_m4_instruct_places_many_images_in_order(self):
        row = {"sample_id": "s", "image": ["a.jpg", "b.jpg"], "metadata": {"dataset": "d"}}
        row["conversations"] = [human("<image> or <image>?"), gpt("First."), human("Why?"), gpt("So.")]
        content = self.one("m4-instruct", row)["messages"][0]["content"]
        self.assertEqual([part.get("path", part.get("text")) for part in content], ["a.jpg", " or ", "b.jpg", "?"])

    def test_llava_video_places_the_video(self):
        row = {"id": "v", "data_source": "0_30_s_academic_v0_1", "video": "academic_source/Charades/x.mp4"}
        row["conversations"] = [human("<image>\nDescribe."), gpt("A man walks.")]
        content = self.one("llava-video", row)["messages"][0]["content"]
        self.assertEqual(content[0], {"type": "video", "path": "academic_source/Charades/x.mp4"})

    def test_r1_onevision_writes_embedded_images_once(self):
        text = base64.b64encode(PNG).decode()
        turns = [human("How many?"), gpt("<think>one</think> 1")]
        table = [
            {"id": "a", "image": text, "conversations": turns},
            {"id": "b", "image": "data:image/png;base64," + text, "conversations": turns},
        ]
        documents, _ = self.call("r1-onevision", self.sample(table), options=["--media", self.dir / "out" / "pics"])
        paths = {d["messages"][0]["content"][0]["path"] for d in documents}
        self.assertEqual(len(paths), 1)
        path = self.out.parent / paths.pop()
        self.assertEqual(path.read_bytes(), PNG)
        self.assertEqual(path.parent.name, "pics")
        self.assertEqual(documents[0]["messages"][0]["content"][1]["text"], "How many?")

    def test_mmdu_drops_the_folder_of_the_authors(self):
        row = {"id": 1, "image": ["/mnt/somewhere/pics/x_1.jpg", "y.jpg"]}
        row["conversations"] = [
            {"from": "user", "value": "Image1: <ImageHere>. Image2: <ImageHere>. Compare."},
            {"from": "assistant", "value": "They differ."},
        ]
        content = self.one("mmdu-45k", row)["messages"][0]["content"]
        paths = [part["path"] for part in content if part["type"] == "image"]
        self.assertEqual(paths, ["mmdu-45k_pics/x_1.jpg", "mmdu-45k_pics/y.jpg"])

    def test_synth_long_keeps_what_looks_like_a_placeholder(self):
        turns = [{"role": "user", "content": "text with <image> in it. Q?"}, {"role": "assistant", "content": "A"}]
        documents, _ = self.call("synth-long", self.sample(json.dumps({"conversations": turns}) + "\n", "d.jsonl"))
        self.assertEqual(documents[0], {"id": "synth-long/d#1", "source": "synth-long", "messages": turns})

    def test_booksum_takes_one_summary_in_both_layouts(self):
        book = {"bid": 5, "title": "T", "text": "Long book.", "summary": [{"source": "a", "text": "Short."}]}
        document = self.one("booksum", book)
        self.assertEqual(document["messages"][1]["content"], "Short.")
        self.assertTrue(document["messages"][0]["content"].endswith("Long book."))
        chapter = {"bid": "6", "chapter": "Chapter text.", "summary": "{}", "summary_text": "It is short."}
        self.assertEqual(self.one("booksum", chapter)["messages"][1]["content"], "It is short.")

    def test_malformed_rows_name_file_and_row(self):
        good = {"id": "g", "conversations": [human("Q"), gpt("A")]}
        bad = [
            ({"id": 1}, "expected a list of turns in conversations"),
            ({"conversations": []}, "expected a list of turns"),
            ({"conversations": ["x"]}, "turn 1"),
            ({"conversations": [{"from": "robot", "value": "x"}]}, "robot"),
            ({"conversations": [{"from": "human", "value": None}]}, "expected a text"),
            ({"conversations": [gpt("A"), human("Q")]}, "the user first"),
            ({"conversations": [human("Q")]}, "a question and an answer"),
            ({"conversations": [human("Q <image>"), gpt("A")]}, "as many places"),
            ({"image": ["a", "b"], "conversations": [human("<image>"), gpt("A")]}, "got 1 and 2"),
            ({"image": "../secret.png", "conversations": [human("Q"), gpt("A")]}, "leaves the media folder"),
            ({"image": "/etc/x.png", "conversations": [human("Q"), gpt("A")]}, "leaves the media folder"),
            ({"image": 3, "conversations": [human("Q"), gpt("A")]}, "got 3"),
            ([1, 2], "expected an object"),
            (None, "expected an object"),
        ]
        for row, message in bad:
            path = self.sample([good, row, good])
            _, errors = self.call("llava-next", path, code=1)
            self.assertIn(f"{path}: row 2: ", errors)
            self.assertIn(message, errors)
            documents, errors = self.call("llava-next", path, options=["--skip-bad"])
            self.assertEqual(len(documents), 2, row)
            self.assertIn("row 2", errors)
            self.out.unlink()

    def test_images_that_are_none_are_refused(self):
        turns = [human("Q"), gpt("A")]
        for image, message in (("@@@", "base64"), (base64.b64encode(b"no image").decode(), "PNG"), (4, "base64")):
            path = self.sample([{"image": image, "conversations": turns}])
            _, errors = self.call("r1-onevision", path, code=1)
            self.assertIn(f"{path}: row 1: ", errors)
            self.assertIn(message, errors)

    def test_broken_files(self):
        good = json.dumps({"conversations": [human("Q"), gpt("A")]})
        for content in (
            f"[{good}, {{",
            f'[{good}, {{"a": 1',
            f"{good}\n{good[:-3]}",
            f"[{good}",
            f"[{good}, 12",
            f"[{good} x",
        ):
            path = self.sample(content)
            _, errors = self.call("synth-long", path, code=1)
            self.assertIn(f"{path}: row 2: expected", errors)
        self.assertEqual(self.call("synth-long", self.sample(""))[0], [])
        self.out.unlink()
        self.assertIn("does not exist", self.call("synth-long", self.dir / "absent.json", code=1)[1])
        self.assertIn("expected .json", self.call("synth-long", self.sample("x", "a.csv"), code=1)[1])
        (self.dir / "empty").mkdir()
        self.assertIn("holds no", self.call("synth-long", self.dir / "empty", code=1)[1])

    def test_hostile_files(self):
        turns = json.dumps([human("Q"), gpt("A")])
        for content, message in (
            ("[" * 200_000, "row 1"),
            ('{"a":' * 200_000, "row 1"),
            ('[{"conversations": ' + turns.replace("Q", "\\ud800") + "}]", "lone surrogate"),
            ("[" + "9" * 5000 + "]", "row 1"),
        ):
            self.assertIn(message, self.call("llava-next", self.sample(content), code=1)[1])
        path = self.sample("")
        path.write_bytes(b'[{"id": "\xff"}]')
        self.assertIn(f"{path}: expected UTF-8", self.call("llava-next", path, code=1)[1])
        path.write_bytes(b'\xef\xbb\xbf[{"conversations": ' + turns.encode() + b"}]")
        self.assertEqual(len(self.call("llava-next", path)[0]), 1)

    def test_long_lists_are_read_in_chunks(self):
        table = [{"n": i, "text": "x" * (i % 50), "e": "\u00e9\u65e5"} for i in range(500)]
        for chunk in (1, 7, 100, 1 << 20):
            for text in (
                json.dumps(table),
                json.dumps(table, indent=1, ensure_ascii=False),
                " \n" + json.dumps([12345]),
            ):
                path = self.sample(text)
                with mock.patch.object(rows, "CHUNK", chunk):
                    self.assertEqual([row for _, row, _ in rows.read(path)], json.loads(text))

    def test_parquet_without_pyarrow_says_what_to_install(self):
        path = self.sample("PAR1", "a.parquet")
        with mock.patch.dict(sys.modules, {"pyarrow": None, "pyarrow.parquet": None}):
            self.assertIn("pip install pyarrow", self.call("openr1-math", path, code=1)[1])

    def test_parquet_rows_with_bytes(self):
        turns = [human("<image>\nQ"), gpt("A")]
        table = [{"id": "p", "conversations": turns, "image": {"bytes": PNG, "path": "x.png"}, "data_source": "s"}]
        if importlib.util.find_spec("pyarrow"):
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(table), self.dir / "a.parquet")
            documents, _ = self.call("llava-next", self.dir / "a.parquet")
        else:
            batch = types.SimpleNamespace(to_pylist=lambda: table)
            reader = types.SimpleNamespace(iter_batches=lambda batch_size: [batch])
            parquet = types.ModuleType("pyarrow.parquet")
            parquet.ParquetFile = lambda path: reader
            package = types.ModuleType("pyarrow")
            package.parquet = parquet
            with mock.patch.dict(sys.modules, {"pyarrow": package, "pyarrow.parquet": parquet}):
                documents, _ = self.call("llava-next", self.sample("PAR1", "a.parquet"))
        path = documents[0]["messages"][0]["content"][0]["path"]
        self.assertEqual((self.out.parent / path).read_bytes(), PNG)

    def test_broken_parquet(self):
        if not importlib.util.find_spec("pyarrow"):
            self.skipTest("pyarrow is not installed")
        self.assertIn("parquet", self.call("openr1-math", self.sample("PAR1", "a.parquet"), code=1)[1])


if __name__ == "__main__":
    unittest.main()
