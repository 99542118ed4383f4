"""What tests of the module share: the tiny model, and the program to compare with."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
import coppice  # noqa: E402
import tiny_gguf  # noqa: E402

ROWS = tiny_gguf.LAYERS * tiny_gguf.KV_HEADS
TEXT = "the quick brown fox jumps over the lazy dog, then the hen and the other heron. " * 3


class TinyModelTest(unittest.TestCase):
    """`path`: the model's file; `model`: it, loaded with a budget that bites."""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.path = str(cls.dir / "tiny.gguf")
        tiny_gguf.write(cls.path)
        cls.prompt_file = cls.dir / "prompt.txt"
        cls.prompt_file.write_text(TEXT)
        cls.model = coppice.load(cls.path, policy="streaming", budget=40, chunk=16, threads=2)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def program(self, *words):
        """What `coppice` prints, as JSON lines. The module's sanitizers are not preloaded there."""
        environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
        done = subprocess.run([os.environ["COPPICE_BINARY"], *map(str, words)], capture_output=True, text=True,
                              check=False, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def run_program(self, *words):
        return self.program("run", "--model", self.path, "--json", *words)

    def refused(self, says, code=None):
        """A context in which a coppice.Error is raised whose message holds `says`."""
        return _Refused(self, says, code)


class _Refused:
    def __init__(self, test, says, code):
        self.test, self.says, self.code = test, says, code
        self.raised = test.assertRaises(coppice.Error)

    def __enter__(self):
        return self.raised.__enter__()

    def __exit__(self, *exception):
        handled = self.raised.__exit__(*exception)
        self.test.assertIn(self.says, str(self.raised.exception))
        if self.code is not None:
            self.test.assertEqual(self.raised.exception.code, self.code)
        return handled
