#!/usr/bin/env python3
"""lm-eval scores a local task through /v1/completions, and its numbers are those of transformers.

A full cache is compared with a plain forward pass, a bounded one with a pass under a mask that hides what the
policy `streaming` has evicted. Needs lm-eval and transformers, which scripts/setup oracle installs; no downloads."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tiny_gguf  # noqa: E402
from serve_client import COMPLETIONS, MadeModelTest, Server, add_oracle_packages, complete, oracle_folder  # noqa: E402

add_oracle_packages()
try:
    import torch
    import transformers
except ImportError:
    torch = transformers = None

TASKS = pathlib.Path(__file__).parent / "lm_eval"
CHUNK, BUDGET, SINKS = 16, 24, 4
SCORED, WHOLE = "coppice_capitals", "coppice_prose"


def lm_eval_program():
    beside = oracle_folder() / "bin/lm_eval"
    return str(beside) if beside.exists() else shutil.which("lm_eval")


class Oracle:
    """The made model as transformers reads it, in float32."""

    def __init__(self, model):
        folder = pathlib.Path(model).parent
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=pathlib.Path(model).name, dtype=torch.float32, attn_implementation="eager").eval()

    def scores(self, ids, bounded):
        """Log-probabilities of ids[1:], each after those before it."""
        size = len(ids)
        seen = torch.zeros(size, size, dtype=torch.bool)
        kept = []
        for start in range(0, size, CHUNK):
            chunk = list(range(start, min(start + CHUNK, size)))
            for token in chunk:
                seen[token, kept + list(range(start, token + 1))] = True
            kept += chunk
            if bounded and len(kept) > BUDGET:
                kept = kept[:SINKS] + kept[-(BUDGET - SINKS):]
        mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
        with torch.no_grad():
            logits = self.model(torch.tensor([ids]), attention_mask=mask).logits[0]
        return torch.log_softmax(logits, -1)[torch.arange(size - 1), ids[1:]], logits.argmax(-1)


@unittest.skipIf(transformers is None or lm_eval_program() is None,
                 "lm-eval or transformers is not installed: scripts/setup oracle installs both")
class LmEvalTest(MadeModelTest):
    flags = ["--policy", "streaming", "--kv-sinks", SINKS, "--chunk", CHUNK, "--kv-pool", "2MiB", "--kv-dtype", "float32",
             "--weights", "float32"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.oracle = Oracle(cls.model)

    def evaluate(self, server, tasks):
        """Task -> samples."""
        with tempfile.TemporaryDirectory() as out:
            environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": f"{out}/home", "TOKENIZERS_PARALLELISM": "false"}
            done = subprocess.run(
                [lm_eval_program(), "run", "--model", "local-completions", "--model_args",
                 f"model=tiny,base_url={server.url}{COMPLETIONS},num_concurrent=4,max_length={tiny_gguf.CONTEXT}",
                 "--tasks", ",".join(tasks), "--include_path", ".", "--output_path", out, "--log_samples"],
                cwd=TASKS, env=environment, capture_output=True, text=True, check=False, timeout=600)
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            samples = {}
            for task in tasks:
                (file,) = pathlib.Path(out).rglob(f"samples_{task}_*.jsonl")
                samples[task] = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return samples

    def ids(self, text):
        return self.server.answer("/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]

    def check_choices(self, samples, bounded):
        differ = 0
        for sample in samples:
            totals = []
            for argument, ((got, greedy),) in zip(sample["arguments"].values(), sample["resps"]):
                context = self.ids(argument["arg_0"])
                ids = context + self.ids(argument["arg_1"])
                scores, best = self.oracle.scores(ids, bounded)
                totals.append(scores[len(context) - 1:].sum().item())
                self.assertAlmostEqual(float(got), totals[-1], delta=2e-3)
                self.assertEqual(greedy == "True", best[len(context) - 1:-1].tolist() == ids[len(context):])
                plain = self.oracle.scores(ids, False)[0][len(context) - 1:].sum().item()
                differ += abs(plain - totals[-1]) > 0.1
            self.assertEqual(sample["acc"], float(totals.index(max(totals)) == sample["doc"]["answer"]))
        self.assertEqual(differ > 0, bounded)  # the bound shows in the scores

    def check_whole(self, samples, bounded):
        end = json.loads(self.server.send("GET", "/tokenizer_info")[2])["eos_token"]
        for sample in samples:
            ids = self.ids(end) + self.ids(sample["doc"]["text"])  # lm-eval starts a text with the end token
            self.assertAlmostEqual(float(sample["resps"][0][0]), self.oracle.scores(ids, bounded)[0].sum().item(), delta=1e-2)

    def test_scores_are_those_of_transformers(self):
        samples = self.evaluate(self.server, [SCORED, WHOLE, "coppice_repeat"])
        self.assertEqual([len(part) for part in samples.values()], [6, 2, 3])
        self.check_choices(samples[SCORED], False)
        self.check_whole(samples[WHOLE], False)
        for sample in samples["coppice_repeat"]:  # generate_until
            text = self.server.answer(COMPLETIONS, complete(sample["doc"]["text"], stop=["\n"]))["choices"][0]["text"]
            self.assertEqual(sample["resps"][0][0], text)

    def test_a_bound_is_scored_as_it_is_served(self):
        bounded = Server(self.model, *self.flags, "--kv-budget", BUDGET)
        try:
            samples = self.evaluate(bounded, [SCORED, WHOLE])
            self.assertGreater(bounded.metrics()["coppice_evicted_entries_total"], 0)
        finally:
            bounded.stop()
        self.check_choices(samples[SCORED], True)
        self.check_whole(samples[WHOLE], True)


if __name__ == "__main__":
    unittest.main()
