#!/usr/bin/env python3
"""`coppice train` as a user meets it: files it leaves, stops and resumes, refusals. Needs no downloads."""

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tiny_gguf  # noqa: E402

COPPICE = os.environ["COPPICE_BINARY"]


def documents(count, seed):
    draw = random.Random(seed)
    words = ["the", "hen", "other", "fox", "heron", "over", "jumps", "quick", "lazy", "dog"]
    lines = []
    for i in range(count):
        text = " ".join(draw.choice(words) for _ in range(draw.randint(10, 60)))
        if i % 4 == 3:
            lines.append({"id": f"c{i}", "source": "talk", "messages": [
                {"role": "user", "content": text}, {"role": "assistant", "content": "the fox. " * 5}]})
        else:
            lines.append({"id": f"d{i}", "source": "prose", "text": text})
    return "".join(json.dumps(line) + "\n" for line in lines)


class TrainTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.dir = pathlib.Path(self.folder.name)
        self.model = str(self.dir / "tiny.gguf")
        tiny_gguf.write(self.model)
        self.data = self.dir / "data.jsonl"
        self.data.write_text(documents(40, 1))
        self.held_out = self.dir / "held-out.jsonl"
        self.held_out.write_text(documents(12, 2))

    def tearDown(self):
        self.folder.cleanup()

    def flags(self, out, *more, drop=()):
        flags = [COPPICE, "train", "--model", self.model, "--data", str(self.data), "--out", str(self.dir / out),
                "--length", "64", "--batch-rows", "2", "--steps", "8", "--width", "8", "--capacity", "24:12",
                "--threads", "1", "--dtype", "float32", *map(str, more)]
        for name in drop:
            at = flags.index(name)
            del flags[at:at + 2]
        return flags

    def record(self, out):
        """How the gate came to be, as its file says."""
        data = (self.dir / out).read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        return json.loads(header["__metadata__"]["training"])

    def train(self, out, *more, code=0, drop=()):
        done = subprocess.run(self.flags(out, *more, drop=drop), capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, f"{more}\n{done.stdout}\n{done.stderr}")
        return done

    def state(self, out):
        return (self.dir / f"{out}.state").read_bytes()

    def tensors(self, out):
        """The tensors of the state: what follows its header, which holds times."""
        data = self.state(out)
        return data[8 + int.from_bytes(data[:8], "little"):]

    def test_training_with_the_cut_of_budgets(self):
        flags = ["--stage", 3, "--budgets", "8:24", "--sharpness", 4, "--sinks", 1]
        done = self.train("cut.safetensors", "--json", *flags)
        self.assertEqual(json.loads(done.stdout)["steps"], 8)
        records = [json.loads(line) for line in (self.dir / "cut.safetensors.log.jsonl").read_text().splitlines()]
        self.assertTrue(all(8 <= r["budget"] <= 24 for r in records))
        self.assertTrue(any(r["kl"] > 0 for r in records))
        self.assertTrue(all(len(r["kept_per_layer"]) == tiny_gguf.LAYERS for r in records))
        self.train("next.safetensors", *flags, "--init-from", self.dir / "cut.safetensors", drop=("--width",))
        record = self.record("next.safetensors")
        self.assertEqual(record["started_from"]["file"], "cut.safetensors")
        self.assertEqual(record["started_from"]["training"]["config"]["steps"], 8)
        self.assertNotIn(os.path.expanduser("~") + "/", record["command"])
        for wrong, word in ((["--budgets", "24:8"], "budgets"), (["--sharpness", 5], "sharpness"),
                            (["--budgets", "8:24x"], "budgets"), (["--recompute"], "--recompute")):
            said = self.train("no.safetensors", *flags, *wrong, code=2).stderr
            self.assertIn(word, said)
        other = self.train("cut.safetensors", *flags, "--sinks", 2, code=2).stderr
        self.assertIn("sinks", other)

    def test_a_run_leaves_a_gate_that_the_program_takes(self):
        done = self.train("g.safetensors", "--json", "--eval-data", self.held_out, "--eval-every", 4,
                          "--eval-context", 64, "--eval-budgets", "8,16")
        result = json.loads(done.stdout)
        self.assertEqual(result["steps"], 8)
        records = [json.loads(line) for line in (self.dir / "g.safetensors.log.jsonl").read_text().splitlines()]
        steps = [r for r in records if "kl" in r]
        self.assertEqual([r["step"] for r in steps], list(range(1, 9)))
        self.assertEqual(len(steps[0]["kept_per_layer"]), tiny_gguf.LAYERS)
        evaluations = [r["eval"] for r in records if "eval" in r]
        self.assertEqual([row["budget"] for row in evaluations[-1]["budgets"]], [8, 16])
        self.assertIn("<svg", (self.dir / "g.safetensors.svg").read_text())
        prompt = self.dir / "prompt.txt"
        prompt.write_text("the hen and the other hen " * 6)
        used = subprocess.run([COPPICE, "run", "--model", self.model, "--gate", str(self.dir / "g.safetensors"),
                               "--kv-budget", "16", "--raw", "--prompt-file", str(prompt), "--max-tokens", "4", "--json"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(used.returncode, 0, used.stderr)
        self.assertEqual(json.loads(used.stdout)["kv"]["policy"], "dbtrimkv")

    def test_gates_of_other_kinds_train_and_serve_their_policy(self):
        prompt = self.dir / "prompt.txt"
        prompt.write_text("the hen and the other hen " * 6)
        for kind in ("kvzap", "fastkvzip"):
            out = f"{kind}.safetensors"
            done = self.train(out, "--json", "--gate-kind", kind, "--stage", 1, "--updates", 4, "--update-tokens", 32)
            self.assertGreater(json.loads(done.stdout)["last_steps"]["repeat"], 0)
            shown = subprocess.run([COPPICE, "inspect", str(self.dir / out), "--json"], capture_output=True, text=True,
                                   check=True)
            self.assertEqual(json.loads(shown.stdout)["kind"], f"{kind} gate")
            run = [COPPICE, "run", "--model", self.model, "--gate", str(self.dir / out), "--kv-budget", "16", "--raw",
                   "--prompt-file", str(prompt), "--max-tokens", "4", "--json"]
            used = subprocess.run(run, capture_output=True, text=True, check=False)
            self.assertEqual(used.returncode, 0, used.stderr)
            self.assertEqual(json.loads(used.stdout)["kv"]["policy"], kind)
            other = subprocess.run([*run, "--policy", "dbtrimkv"], capture_output=True, text=True, check=False)
            self.assertNotEqual(other.returncode, 0)
            self.assertIn("retention gate", other.stderr)
            self.assertIn("--stage 1", self.train("no", "--gate-kind", kind, code=2).stderr)
            self.assertIn("--gate-kind", self.train("no", "--init-from", self.dir / out, drop=("--width",),
                                                    code=1).stderr)

    def test_a_stopped_run_goes_on_as_if_it_had_not(self):
        self.train("whole.safetensors")
        child = subprocess.Popen(self.flags("part.safetensors", "--save-every", 1), stderr=subprocess.PIPE, text=True)
        log = self.dir / "part.safetensors.log.jsonl"
        until = time.time() + 60
        while time.time() < until and not (log.exists() and log.read_text().count("\n") >= 2):
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        stderr = child.communicate(timeout=60)[1]
        self.assertIn(child.returncode, (0, 1), stderr)  # 0: it was done before the signal came
        if child.returncode == 1:
            self.assertIn("goes on from it", stderr)
        self.train("part.safetensors", "--save-every", 3)
        self.assertEqual(self.tensors("part.safetensors"), self.tensors("whole.safetensors"))

    def test_other_options_are_refused_by_name(self):
        self.train("g.safetensors")
        before = self.state("g.safetensors")
        done = self.train("g.safetensors", "--lambda", 2, code=1)
        self.assertIn("lambda was 1", done.stderr)
        self.assertEqual(self.state("g.safetensors"), before)
        self.train("g.safetensors", "--lambda", 2, "--restart")
        self.train("new.safetensors", "--resume", code=1)

    def test_malformed_data_is_told_with_its_line(self):
        self.data.write_text(documents(2, 1) + "{\"text\": 3}\n")
        self.assertIn("data.jsonl:3", self.train("g.safetensors", code=1).stderr)
        self.data.write_text(json.dumps({"id": "p", "messages": [
            {"role": "user", "content": [{"type": "image", "path": "a.png"}]}]}) + "\n")
        self.assertIn("text alone", self.train("g.safetensors", code=1).stderr)
        self.data.write_text("")
        self.assertIn("no document", self.train("g.safetensors", code=1).stderr)

    def test_flags_that_make_no_sense_exit_with_2(self):
        for flags in (["--capacity", "x"], ["--batch-rows", 3, "--micro-rows", 2], ["--variant", "best"],
                      ["--eval-every", 5], ["--lambda", -1], ["--steps", 0]):
            self.train("g.safetensors", *flags, code=2)


if __name__ == "__main__":
    unittest.main()
