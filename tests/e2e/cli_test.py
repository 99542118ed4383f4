#!/usr/bin/env python3
"""The program as a user meets it: outputs, exit codes, messages. Needs no downloads."""

import hashlib
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

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COPPICE = os.environ["COPPICE_BINARY"]
ROWS = tiny_gguf.LAYERS * tiny_gguf.KV_HEADS
TEXT = "the quick brown fox jumps over the lazy dog, then the hen and the other heron. " * 3


class CliTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.dir = pathlib.Path(cls.folder.name)
        cls.model = str(cls.dir / "tiny.gguf")
        tiny_gguf.write(cls.model)
        cls.prompt = str(cls.dir / "prompt.txt")
        pathlib.Path(cls.prompt).write_text(TEXT)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def call(self, *args, code=0, stdin=""):
        done = subprocess.run([COPPICE, *map(str, args)], input=stdin, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, f"{args}\n{done.stdout}\n{done.stderr}")
        return done

    def run_json(self, *args, **more):
        done = self.call("run", "--model", self.model, "--json", *args, **more)
        return json.loads(done.stdout)

    def raw(self, *args):
        return self.run_json("--raw", "--prompt-file", self.prompt, *args)

    def refuse(self, *args, code, says, stdin=""):
        done = self.call(*args, code=code, stdin=stdin)
        self.assertIn(says, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_the_system_message_can_be_pinned(self):
        turns = self.dir / "turns.txt"
        turns.write_text(f"{TEXT}\nand then?\n")
        args = ("--policy", "streaming", "--kv-budget", 40, "--chunk", 16, "--max-tokens", 8, "--ignore-eos", "--turns-file",
                turns, "--system", "Never lie.")
        lines = self.call("run", "--model", self.model, "--json", *args, "--keep-system").stdout.splitlines()
        self.assertEqual([json.loads(line)["kv"]["kept_entries"] for line in lines], [40 * ROWS] * 2)
        self.refuse("run", "--model", self.model, "--kv-budget", 12, "--policy", "streaming", "--system", "Never lie.",
                    "--keep-system", "hi", code=2, says="pinned tokens")
        self.refuse("run", "--model", self.model, "--keep-system", "hi", code=2, says="--system")
        self.refuse("run", "--model", self.model, "--system", "a", "--keep-system", "--raw", "hi", code=2, says="--raw")

    def test_json_has_the_documented_keys(self):
        result = self.raw("--max-tokens", 5)
        self.assertEqual(set(result), {"text", "finish_reason", "tokens", "kv", "timing"})
        self.assertEqual(set(result["tokens"]), {"prompt", "generated", "reused"})
        self.assertEqual(set(result["kv"]), {"policy", "budget_entries", "kept_entries", "kept_image_entries", "evicted_entries",
                                             "peak_entries", "bytes_bound", "bytes_peak"})
        self.assertEqual(set(result["timing"]), {"load_s", "prefill_tokens_per_s", "decode_tokens_per_s",
                                                 "evict_share"})

    def test_a_budget_is_kept_exactly_and_its_bound_holds(self):
        for policy in ("streaming", "knorm"):
            result = self.raw("--max-tokens", 50, "--ignore-eos", "--kv-budget", 20, "--chunk", 16, "--policy", policy)
            kv = result["kv"]
            self.assertEqual(kv["kept_entries"], 20 * ROWS)
            self.assertEqual(kv["budget_entries"], 20 * ROWS)
            self.assertLessEqual(kv["peak_entries"], (20 + 16) * ROWS)
            self.assertLessEqual(kv["bytes_peak"], kv["bytes_bound"])
            read = result["tokens"]["prompt"] + result["tokens"]["generated"] - 1
            self.assertEqual(kv["kept_entries"] + kv["evicted_entries"], read * ROWS)

    def test_a_byte_budget_bounds_what_is_allocated(self):
        result = self.raw("--max-tokens", 20, "--ignore-eos", "--kv-budget", "64KiB", "--chunk", 8, "--policy", "streaming")
        self.assertLessEqual(result["kv"]["bytes_bound"], 64 * 1024)
        self.assertGreater(result["kv"]["evicted_entries"], 0)

    def test_a_budget_at_the_length_gives_the_text_of_the_full_cache(self):
        full = self.raw("--max-tokens", 30, "--ignore-eos", "--kv-budget", "full")
        for policy in ("streaming", "knorm"):
            bounded = self.raw("--max-tokens", 30, "--ignore-eos", "--kv-budget", 400, "--policy", policy)
            self.assertEqual(bounded["text"], full["text"])
            self.assertEqual(bounded["kv"]["evicted_entries"], 0)

    def test_K28_exact_token_counts(self):
        for count in (0, 1, 2, 100):
            result = self.raw("--max-tokens", count, "--ignore-eos", "--kv-budget", 16, "--chunk", 8)
            self.assertEqual(result["tokens"]["generated"], count)
            self.assertEqual(result["finish_reason"], "length")

    def test_a_seed_reproduces_and_no_seed_does_not(self):
        hot = ["--max-tokens", 40, "--ignore-eos", "--temperature", "1.5"]
        self.assertEqual(self.raw(*hot, "--seed", 7)["text"], self.raw(*hot, "--seed", 7)["text"])
        self.assertGreater(len({self.raw(*hot)["text"] for _ in range(5)}), 1)

    def test_turns_reuse_what_was_read(self):
        turns = self.dir / "turns.txt"
        turns.write_text("hello there\nand then?\n")
        done = self.call("run", "--model", self.model, "--turns-file", turns, "--max-tokens", 8, "--json")
        first, second = map(json.loads, done.stdout.splitlines())
        self.assertEqual(first["tokens"]["reused"], 0)
        self.assertGreater(second["tokens"]["reused"], 0)

    def test_chat_reads_a_message_a_line(self):
        done = self.call("chat", "--model", self.model, "--max-tokens", 4, "--json", stdin="hello\nthen\nthere\n")
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(lines), 3)
        self.assertGreater(lines[2]["tokens"]["reused"], lines[1]["tokens"]["reused"])
        self.assertIn("streaming", done.stderr)  # the fallback is said aloud

    def test_plan_names_what_run_allocates(self):
        shape = ["--kv-budget", 20, "--chunk", 16]
        plan = json.loads(self.call("plan", "--model", self.model, "--json", *shape).stdout)
        result = self.raw("--max-tokens", 4, *shape)
        self.assertEqual(plan["bytes"]["kv"], result["kv"]["bytes_bound"])
        self.assertEqual(plan["bytes"]["total"], sum(v for k, v in plan["bytes"].items() if k != "total"))

    def test_bench_measures_and_tells_the_limit(self):
        flags = ["bench", "--model", self.model, "--text", self.prompt, "--kv-budget", 32, "--chunk", 16,
                 "--new-tokens", 6, "--repeats", 2]
        shown = json.loads(self.call(*flags, "--json", "--prompt-tokens", "64,100", "--sequences", 3).stdout)
        self.assertEqual([result["tokens"]["prompt"] for result in shown["results"]], [3 * 64, 3 * 100])
        for result in shown["results"]:
            self.assertEqual(result["kv"]["kept_entries"], 3 * 32 * ROWS)
            self.assertLessEqual(result["kv"]["bytes_peak"], result["kv"]["bytes_bound"])
            memory, timing = result["memory"], result["timing"]
            # Float16 keys and values of what is kept, and every weight once, are what a step reads.
            self.assertEqual(memory["kv_bytes"], 3 * 32 * ROWS * 2 * 2 * tiny_gguf.HIDDEN // tiny_gguf.HEADS)
            self.assertEqual(memory["step_bytes"], memory["kv_bytes"] + shown["weight_bytes_per_step"])
            self.assertAlmostEqual(memory["limit_share"], timing["decode_tokens_per_s"] / memory["limit_tokens_per_s"])
            self.assertAlmostEqual(memory["limit_tokens_per_s"], 3 * memory["stream_bytes_per_s"] / memory["step_bytes"])
            self.assertGreater(timing["prefill_tokens_per_s"], 0)
            self.assertGreater(timing["evict_share"], 0)
            self.assertLess(timing["evict_share"], 1)
            self.assertEqual(len(result["repeats"]["decode_tokens_per_s"]), 2)
        self.assertIn("reached", self.call(*flags, "--prompt-tokens", 64).stdout)
        self.refuse(*flags, "--prompt-tokens", 0, code=2, says="--prompt-tokens")
        self.refuse(*flags, "--prompt-tokens", 600, code=1, says="512")

    def test_inspect_tells_what_is_in_a_model(self):
        shown = json.loads(self.call("inspect", self.model, "--json", "--tensors").stdout)
        self.assertEqual(len(shown["tensors"]), 2 + 9 * tiny_gguf.LAYERS)
        self.assertIn("llama", self.call("inspect", self.model).stdout)

    def test_a_published_gate_converts_and_is_refused_by_a_model_it_does_not_fit(self):
        gate = str(self.dir / "gate.safetensors")
        self.call("convert-gate", ROOT / "tests/golden/gate_rg10.pth", gate)
        shown = json.loads(self.call("inspect", gate, "--json").stdout)
        self.assertEqual(shown["kind"], "retention gate")
        self.refuse("run", "--model", self.model, "--gate", gate, "hello", code=1, says="gate")

    def test_the_hash_of_a_model_is_remembered_until_the_file_changes(self):
        gate = str(self.dir / "remembered.safetensors")
        self.call("convert-gate", ROOT / "tests/golden/gate_rg10.pth", gate)
        model, cache = self.dir / "remembered.gguf", self.dir / "cache"
        shutil.copy(self.model, model)
        known = cache / "hashes.json"

        def hashes():
            # A gate that does not fit is refused after the model's hash was looked up.
            subprocess.run([COPPICE, "run", "--model", str(model), "--gate", gate, "hello"], check=False,
                           capture_output=True, env={**os.environ, "COPPICE_CACHE": str(cache)})
            return list(json.loads(known.read_text()).values())

        def digest():
            return hashlib.sha256(model.read_bytes()).hexdigest()

        self.assertEqual(hashes(), [digest()])
        key = next(iter(json.loads(known.read_text())))
        known.write_text(json.dumps({key: "0" * 64}))
        self.assertEqual(hashes(), ["0" * 64])  # not read again
        before = digest()
        with model.open("ab") as file:
            file.write(bytes(32))
        self.assertNotEqual(digest(), before)
        self.assertEqual(hashes(), ["0" * 64, digest()])
        known.write_text("no json")
        self.assertEqual(hashes(), [digest()])

    def test_wrong_usage_is_exit_code_2(self):
        run = ["run", "--model", self.model, "hello"]
        for flags, says in (
            (["--kv-budget", "0"], "above 0"),
            (["--kv-budget", "64MB2"], "unknown unit"),
            (["--kv-budget", "3", "--policy", "streaming"], "sinks"),
            (["--policy", "magic"], "magic"),
            (["--policy", "dbtrimkv", "--kv-budget", "16"], "gate"),
            (["--temperature", "-1"], "temperature"),
            (["--temperature", "nan"], "temperature"),
            (["--top-p", "1.5"], "top_p"),
            (["--repetition-penalty", "0"], "repetition_penalty"),
            (["--logit-bias", "99999=1"], "99999"),
            (["--logit-bias", "x"], "TOKEN_ID=BIAS"),
            (["--no-such-flag"], "no-such-flag"),
            (["--stop", ""], "stop"),
        ):
            with self.subTest(flags=flags):
                self.refuse(*run, *flags, code=2, says=says)
        self.refuse(code=2, says="subcommand")
        self.refuse("run", "--model", self.model, "--raw", "", code=2, says="empty")

    def test_bad_files_are_exit_code_1_and_name_the_fault(self):
        data = pathlib.Path(self.model).read_bytes()
        bad = self.dir / "bad.gguf"
        for content in (b"", b"GGUF", data[:100], data[: len(data) // 2], data[:-1], b"not a model at all" * 10):
            bad.write_bytes(content)
            with self.subTest(size=len(content)):
                self.refuse("run", "--model", bad, "hello", code=1, says="bad.gguf")
        self.refuse("run", "--model", self.dir / "absent.gguf", "hello", code=1, says="absent.gguf")

    def test_a_prompt_beyond_the_trained_range_is_refused_and_compact_positions_take_it(self):
        long = self.dir / "long.txt"
        long.write_text(TEXT * 4)
        flags = ["run", "--model", self.model, "--raw", "--prompt-file", long, "--max-tokens", 5, "--ignore-eos",
                 "--kv-budget", 32]
        self.refuse(*flags, code=1, says="512")
        result = json.loads(self.call(*flags, "--positions", "compact", "--json").stdout)
        self.assertGreater(result["tokens"]["prompt"], 512)
        self.assertEqual(result["kv"]["kept_entries"], 32 * ROWS)

    def test_eval_ppl_gives_the_same_number_for_a_budget_of_the_length(self):
        ppl = ["eval", "ppl", "--model", self.model, "--text", self.prompt, "--context", 128, "--json"]
        full = json.loads(self.call(*ppl).stdout)
        same = json.loads(self.call(*ppl, "--kv-budget", 128, "--policy", "streaming").stdout)
        less = json.loads(self.call(*ppl, "--kv-budget", 24, "--policy", "streaming", "--chunk", 16).stdout)
        self.assertEqual(full["perplexity"], same["perplexity"])
        self.assertNotEqual(full["perplexity"], less["perplexity"])
        self.assertEqual(less["kv"]["kept_entries"], 24 * ROWS)

    def rows_of(self, path):
        head, *rows = map(json.loads, pathlib.Path(path).read_text().splitlines())
        return head["evaluation"], rows

    def test_eval_held_out_resumes_and_refuses_another_configuration(self):
        data, out = self.dir / "documents.jsonl", self.dir / "held-out.jsonl"
        documents = [{"id": f"d{i}", "source": "test", "text": TEXT[i:]} for i in range(3)] + [{"id": "s", "text": "short"}]
        data.write_text("".join(json.dumps(document) + "\n" for document in documents))
        flags = ["eval", "held-out", "--model", self.model, "--data", data, "--contexts", 64, 128, "--documents", 2,
                 "--policies", "streaming", "random", "--chunk", 16, "--out", out]
        self.call(*flags, "--budgets", 16)
        first = out.read_bytes()
        shown = json.loads(self.call(*flags, "--budgets", 16, 24, "--json").stdout)
        config, rows = self.rows_of(out)
        self.assertTrue(out.read_bytes().startswith(first))
        # Two documents of two contexts: the full cache and two budgets of two policies; and each policy with
        # a budget that holds all of the first.
        self.assertEqual(len(rows), 2 * 2 * (1 + 2 * 2) + 2)
        self.assertEqual(shown["rows"], len(rows))
        self.assertEqual(config["model_sha256"], hashlib.sha256(pathlib.Path(self.model).read_bytes()).hexdigest())
        self.assertEqual(config["data_sha256"], hashlib.sha256(data.read_bytes()).hexdigest())
        for row in rows:
            self.assertEqual({key: row[key] for key in config}, config)
            self.assertEqual(row["scored_tokens"], row["context"] // 2 - 1)
            self.assertLessEqual(row["bytes_peak"], row["bytes_bound"])
            if row["budget"] in (16, 24):
                self.assertEqual(row["kept_entries"], row["budget"] * ROWS)
        self.assertEqual(len(shown["summary"]), 2 * (1 + 2 * 2))
        for group in shown["summary"]:
            self.assertEqual(group["documents"], 2)
            self.assertEqual(group["ratio"] == 1, group["policy"] == "full")
        # Killed in the middle of a line.
        whole = out.read_bytes()
        out.write_bytes(whole[: len(whole) - 25])
        again = json.loads(self.call(*flags, "--budgets", 16, 24, "--json").stdout)
        self.assertEqual(again["summary"], shown["summary"])
        self.assertEqual(len(self.rows_of(out)[1]), len(rows))
        self.refuse(*flags, "--budgets", 16, "--seed", 9, code=1, says="seed is 1 there and 9 now")
        self.call(*flags, "--budgets", 16, "--seed", 9, "--restart")
        self.assertEqual(self.rows_of(out)[0]["seed"], 9)
        self.refuse(*flags, "--contexts", 4000, code=1, says="4000")
        self.refuse(*flags[:-1], self.prompt, code=1, says="no file of evaluation results")
        self.assertEqual(pathlib.Path(self.prompt).read_text(), TEXT)
        for wrong, says in ((["--policies", "dbtrimkv"], "gate"), (["--policies", "magic"], "magic"),
                            (["--budgets", "3"], "sinks"), (["--kv-budget", "16"], "kv-budget")):
            self.refuse(*flags, *wrong, code=2, says=says)

    def test_eval_recall_asks_for_what_was_hidden(self):
        model, out = self.dir / "roomy.gguf", self.dir / "recall.jsonl"
        tiny_gguf.write(str(model), context=2048)
        text = self.dir / "story.txt"
        text.write_text("".join(f"This is sentence {i} of a story. " for i in range(60)))
        flags = ["eval", "recall", "--model", model, "--text", text, "--lengths", 700, 900, "--trials", 4,
                 "--policies", "streaming", "--budgets", 64, "--answer-tokens", 4, "--out", out, "--json"]
        shown = json.loads(self.call(*flags).stdout)
        _, rows = self.rows_of(out)
        self.assertEqual(len(rows), 2 * 4 * 2 + 1)
        for row in rows:
            self.assertLessEqual(row["tokens"], row["length"])
            self.assertGreater(row["tokens"], row["length"] - 60)
            self.assertTrue(row["question"].endswith("?"))
            self.assertEqual(row["correct"], row["expected"] in row["answer"])
        self.assertEqual([group["trials"] for group in shown["summary"]], [4, 4, 4, 4, 8, 8])
        before = out.read_bytes()
        self.assertEqual(json.loads(self.call(*flags).stdout), shown)
        self.assertEqual(out.read_bytes(), before)
        self.refuse(*flags[:-3], "--out", out, "--lengths", 2000, code=1, says="2048")

    def test_eval_ruler_keeps_to_its_length_and_names_what_was_in_force(self):
        model, out = self.dir / "ruler.gguf", self.dir / "ruler.jsonl"
        tiny_gguf.write(str(model), context=2048)
        text = self.dir / "ruler.txt"
        text.write_text("".join(f"This is sentence {i} of a story. " for i in range(60)))
        flags = ["eval", "ruler", "--model", model, "--text", text, "--lengths", 900, "--trials", 1, "--kinds",
                 "single", "variables", "--question", "both", "--policies", "streaming", "streaming:sinks=0",
                 "--budgets", 64, "--out", out, "--json"]
        shown = json.loads(self.call(*flags).stdout)
        header, rows = self.rows_of(out)
        self.assertEqual(len(header["template_sha256"]), 64)
        self.assertEqual({(row["kind"], row["asked"]) for row in rows},
                         {(kind, asked) for kind in ("single", "variables") for asked in ("seen", "unseen")})
        for row in rows:
            self.assertLessEqual(row["tokens"], 900)
            if row["policy"] == "streaming:sinks=0":
                self.assertEqual(row["options"]["sinks"], 0)
            if row["budget"] == 64:
                self.assertGreater(row["budget_bytes"], 0)
        self.assertEqual(len(shown["summary"]), 2 * 2 * 3)
        self.refuse(*flags, "--kinds", "magic", code=2, says="magic")
        self.refuse(*flags, "--policies", "streaming:sinks=x", code=2, says="sinks")


if __name__ == "__main__":
    unittest.main()
