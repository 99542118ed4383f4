#!/usr/bin/env python3
"""`coppice study rank` on a tiny model: what it writes, that it goes on, and what it refuses. Needs no downloads."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tiny_gguf  # noqa: E402

COPPICE = os.environ["COPPICE_BINARY"]
TEXT = "The Quick brown fox jumps over 12 lazy dogs,\n\nthen the hen and the other heron. " * 3
TABLES = ("quality.csv", "standings.csv", "kept.csv", "kept-kinds.csv", "cost.csv")


class StudyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.model = cls.dir / "tiny.gguf"
        tiny_gguf.write(str(cls.model))
        data = cls.dir / "documents.jsonl"
        data.write_text("".join(json.dumps({"id": f"d{i}", "source": "test", "text": TEXT[i:]}) + "\n" for i in range(3)))
        tasks = [
            {"name": "held-out", "title": "Held-out <text>", "shows": "quality", "command": ["held-out", "--data", str(data)],
             "full": ["--contexts", "64", "128", "--documents", "3"], "quick": ["--contexts", "64", "--documents", "2"],
             "value": "ratio", "interval": "ratio_interval", "groups": ["context"], "better": "lower", "axis": "ratio"},
            {"name": "agreement", "title": "Agreement", "shows": "quality", "command": ["agreement", "--data", str(data)],
             "full": ["--contexts", "64", "--documents", "2", "--new-tokens", "8"],
             "quick": ["--contexts", "64", "--documents", "2", "--new-tokens", "8"],
             "value": "agreement", "interval": "agreement_interval", "groups": ["context"], "better": "higher",
             "axis": "share"},
            {"name": "kept", "title": "Kept", "shows": "kept", "command": ["kept", "--data", str(data)],
             "full": ["--context", "64", "--documents", "2"], "quick": ["--context", "64", "--documents", "1"],
             "budgets": [16]},
            {"name": "cost", "title": "Cost", "shows": "cost", "command": ["cost", "--data", str(data)],
             "full": ["--prompt-tokens", "64", "--new-tokens", "4", "--repeats", "1"],
             "quick": ["--prompt-tokens", "64", "--new-tokens", "4", "--repeats", "1"], "budgets": [16]},
        ]
        cls.plan = cls.dir / "plan.json"
        cls.plan.write_text(json.dumps({"tasks": tasks}))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def rank(self, out, *more, code=0, plan=None):
        args = ["study", "rank", "--model", self.model, "--plan", plan or self.plan, "--out", out, "--policies", "streaming", "knorm",
                "--budgets", 8, 16, "--chunk", 8, *more]
        done = subprocess.run([COPPICE, *map(str, args)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def test_writes_a_page_plots_and_tables_and_goes_on(self):
        out = self.dir / "rank"
        done = self.rank(out)
        page = (out / "report.html").read_text()
        self.assertIn("Held-out &lt;text&gt;", page)
        for word in ("src=", "href=", "url(", "<script", "@import", "nan"):
            self.assertNotIn(word, page)
        for table in TABLES:
            self.assertGreater(len((out / table).read_text().splitlines()), 1, table)
        # Two policies at two budgets over two contexts, and once more for the agreement.
        self.assertEqual(len((out / "quality.csv").read_text().splitlines()), 1 + 2 * 2 * 2 + 2 * 2)
        plots = sorted((out / "plots").glob("*.svg"))
        self.assertGreaterEqual(len(plots), 9)
        for plot in plots:
            ElementTree.parse(plot)
            self.assertEqual(plot.with_suffix(".png").exists(), shutil.which("rsvg-convert") is not None)
        if shutil.which("rsvg-convert") is None:
            self.assertIn("librsvg2-bin", done.stdout)
        # What was measured is not measured again, and the page is the same but for nothing.
        rows = (out / "held-out.jsonl").read_bytes()
        self.rank(out)
        self.assertEqual((out / "held-out.jsonl").read_bytes(), rows)
        self.assertEqual((out / "report.html").read_text(), page)
        # A killed run goes on from what is whole.
        (out / "held-out.jsonl").write_bytes(rows[: len(rows) // 2])
        self.rank(out)
        lines = (out / "held-out.jsonl").read_text().splitlines()
        self.assertEqual(len(lines), len(rows.decode().splitlines()))
        self.rank(out, "--report-only")
        self.assertEqual((out / "quality.csv").read_text().count("\n"), 13)

    def test_says_without_the_converter_that_plots_are_svg_only(self):
        out, empty = self.dir / "svg", self.dir / "empty"
        empty.mkdir()
        path, os.environ["PATH"] = os.environ["PATH"], str(empty)
        try:
            done = self.rank(out, "--quick")
        finally:
            os.environ["PATH"] = path
        self.assertIn("librsvg2-bin", done.stdout)
        self.assertEqual(list((out / "plots").glob("*.png")), [])
        self.assertGreater(len(list((out / "plots").glob("*.svg"))), 5)
        self.assertIn("A quick run", (out / "report.html").read_text())

    def test_refuses_what_it_cannot_do(self):
        for wrong, code, says in ((["--policies", "magic"], 2, "magic"), (["--report-only"], 1, "summary"),
                                  (["--policies", "dbtrimkv"], 2, "gate")):
            done = self.rank(self.dir / "refused", *wrong, code=code)
            self.assertIn(says, done.stderr)
        wrong = self.dir / "wrong.json"
        wrong.write_text('{"tasks": [{"name": "a"}]}')
        self.assertIn("title", self.rank(self.dir / "refused", plan=wrong, code=2).stderr)


if __name__ == "__main__":
    unittest.main()
