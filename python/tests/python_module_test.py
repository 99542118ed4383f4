#!/usr/bin/env python3
"""The Python module does what the program does: the same text, numbers and entries. Needs no downloads."""

import json
import os
import subprocess
import sys
import threading
import unittest

import coppice
import numpy as np
from module_testing import ROWS, TEXT, TinyModelTest, tiny_gguf

POLICIES = ("full", "streaming", "knorm", "keydiff", "h2o", "tova", "snapkv", "pyramidkv", "adakv", "random")


class TextTest(TinyModelTest):
    def test_greedy_text_and_numbers_are_the_programs(self):
        for policy in POLICIES:
            budget = "full" if policy == "full" else 40
            [says] = self.run_program("--raw", "--prompt-file", self.prompt_file, "--policy", policy, "--kv-budget", budget,
                                      "--chunk", 16, "--max-tokens", 24, "--ignore-eos")
            made = self.model.using(policy=policy, budget=budget).generate(TEXT, max_tokens=24, ignore_eos=True)
            self.assertEqual(made.text, says["text"], policy)
            self.assertEqual(made.finish_reason, says["finish_reason"])
            usage = made.usage.to_dict()
            self.assertEqual(usage["kv"], says["kv"], policy)
            self.assertEqual(usage["tokens"], says["tokens"])
            self.assertEqual(len(made.session.kept()), says["kv"]["kept_entries"])

    def test_a_chat_is_the_programs(self):
        turns = self.dir / "turns.txt"
        turns.write_text(f"{TEXT}\nand then?\nand now?\n")
        lines = self.run_program("--policy", "streaming", "--kv-budget", 40, "--chunk", 16, "--max-tokens", 8,
                                 "--ignore-eos", "--turns-file", turns, "--system", "Never lie.", "--keep-system")
        chat = self.model.chat(system="Never lie.", keep_system=True)
        for turn, line in zip(turns.read_text().splitlines(), lines, strict=True):
            answer = chat.ask(turn, max_tokens=8, ignore_eos=True)
            self.assertEqual("".join(answer), line["text"])
            self.assertEqual(answer.usage.tokens.reused, line["tokens"]["reused"])
            self.assertEqual(answer.usage.kv.kept_entries, 40 * ROWS)
        self.assertEqual([message["role"] for message in chat.messages], ["system", *["user", "assistant"] * 3])
        self.assertEqual(chat.messages[-1]["content"], lines[-1]["text"])
        system = len(self.model.encode("<|im_start|>system\nNever lie."))
        self.assertEqual(chat.kept().positions(0, 0)[:system].tolist(), list(range(system)))

    def test_pieces_make_the_text(self):
        made = self.model.generate(TEXT, max_tokens=30, ignore_eos=True)
        pieces = list(made)
        self.assertGreater(len(pieces), 1)
        self.assertTrue(all(pieces))
        self.assertEqual("".join(pieces), made.text)
        self.assertEqual(len(made.tokens), 30)
        self.assertEqual(self.model.generate(TEXT, max_tokens=30, ignore_eos=True).text, made.text)

    def test_seeds_and_stops(self):
        hot = {"max_tokens": 40, "ignore_eos": True, "temperature": 1.5}
        texts = {self.model.generate(TEXT, **hot).text for _ in range(5)}
        self.assertGreater(len(texts), 1)
        seeded = {self.model.generate(TEXT, seed=7, **hot).text for _ in range(3)}
        self.assertEqual(len(seeded), 1)
        [text] = seeded
        stop = text[10:14]
        ended = self.model.generate(TEXT, seed=7, stop=stop, **hot)
        self.assertEqual(ended.text, text[: text.index(stop)])
        self.assertEqual(ended.finish_reason, "stop")

    def test_tokens_and_text(self):
        ids = self.model.encode(TEXT)
        self.assertEqual(ids.dtype, np.int32)
        self.assertEqual(self.model.decode(ids), TEXT)
        for prompt in (ids, ids.tolist(), tuple(ids.tolist()), ids.astype(np.uint16)):
            made = self.model.generate(prompt, max_tokens=9)
            self.assertEqual(made.text, self.model.generate(TEXT, max_tokens=9).text)
        self.assertEqual(self.model.encode("<|im_start|>").tolist(), [258])
        self.assertGreater(len(self.model.encode("<|im_start|>", special=False)), 1)


class SessionTest(TinyModelTest):
    def test_a_session_goes_on_where_it_was(self):
        whole = self.model.session()
        whole.read(TEXT * 2)
        parts = self.model.session()
        ids = self.model.encode(TEXT * 2)
        parts.read(ids[:32])
        parts.read(ids[32:])
        self.assertEqual(parts.tokens.tolist(), ids.tolist())
        self.assertEqual(len(parts.kept()), 40 * ROWS)
        np.testing.assert_array_equal(parts.kept().mask, whole.kept().mask)
        made = parts.generate("and", max_tokens=5, ignore_eos=True)
        self.assertEqual(made.text, whole.generate("and", max_tokens=5, ignore_eos=True).text)
        self.assertEqual(made.usage.tokens.reused, len(ids))
        more = parts.generate(max_tokens=5, ignore_eos=True).finish()  # on from the token that was drawn last
        self.assertEqual(more.usage.tokens.reused, len(parts) - 6)
        self.assertEqual(len(more.tokens), 5)

    def test_forks_go_their_own_ways(self):
        session = self.model.session(forks=3)
        session.read(TEXT)
        before = session.kept().mask
        alone = self.model.session()
        alone.read(TEXT)
        wanted = [alone_answer(self.model, question) for question in ("who?", "why?")]
        first, second = session.fork(), session.fork()
        answers = [first.generate("who?", max_tokens=12, ignore_eos=True), second.generate("why?", max_tokens=12, ignore_eos=True)]
        pieces = ["", ""]
        while any(answer.finish_reason is None for answer in answers):  # in turn: their steps are shared
            for i, answer in enumerate(answers):
                pieces[i] += next(answer, "")
        self.assertEqual(pieces, wanted)
        np.testing.assert_array_equal(session.kept().mask, before)
        del first, second, answers, answer
        for _ in range(20):  # the room of those that have ended is free
            session.fork()
        forks = []
        with self.refused("not spoken for", "capacity"):
            while len(forks) < 20:
                forks.append(session.fork())
        self.assertGreaterEqual(len(forks), 2)

    def test_a_stopped_request_leaves_the_session(self):
        session = self.model.session()
        session.read(TEXT)
        made = session.generate("and", max_tokens=100, ignore_eos=True)
        begun = [next(made), next(made)]
        made.stop()
        self.assertEqual(list(made), [])
        self.assertEqual(made.finish_reason, "stopped")
        self.assertEqual(made.text, "".join(begun))
        length = len(session)
        other = session.generate("so", max_tokens=4, ignore_eos=True)
        self.assertGreaterEqual(other.finish().usage.tokens.prompt, length)
        left = session.generate("a", max_tokens=50, ignore_eos=True)
        next(left)
        session.generate("b", max_tokens=2).finish()
        self.assertEqual(left.finish().finish_reason, "stopped")
        chat = self.model.chat()
        answer = chat.ask("hello", max_tokens=50, ignore_eos=True)
        said = next(answer)
        chat.stop()
        self.assertTrue(chat.messages[-1]["content"].startswith(said))
        again = chat.ask("again", max_tokens=3, ignore_eos=True)
        self.assertIsNone(again.usage)
        self.assertEqual(again.finish().usage.tokens.reused, 0)  # all is read again

    def test_scores_of_a_text(self):
        model = self.model.using(budget="full", policy=None)
        made = model.generate(TEXT, max_tokens=20, ignore_eos=True, logprobs=3).finish()
        both = np.concatenate([model.encode(TEXT), made.tokens])
        read = model.session().read(both, score=True, logprobs=3).prompt_scores
        self.assertEqual(read.tokens.tolist(), both.tolist())
        self.assertTrue(np.isnan(read.logprobs[0]) and not np.isnan(read.logprobs[1:]).any())
        np.testing.assert_array_equal(read.logprobs[-20:], made.scores.logprobs)
        self.assertEqual(read.top[-20:], made.scores.top)
        self.assertEqual([best[0][0] for best in made.scores.top], made.tokens.tolist())
        self.assertAlmostEqual(read.perplexity, float(np.exp(-read.logprobs[1:].astype(float).mean())))

    def test_threads_take_turns(self):
        texts = {}

        def work(policy):
            texts[policy] = self.model.using(policy=policy).generate(TEXT, max_tokens=30, ignore_eos=True).text

        threads = [threading.Thread(target=work, args=(policy,)) for policy in ("streaming", "knorm", "snapkv")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for policy, text in texts.items():
            alone = self.model.using(policy=policy).generate(TEXT, max_tokens=30, ignore_eos=True).text
            self.assertEqual(text, alone, policy)


def alone_answer(model, question):
    session = model.session()
    session.read(TEXT)
    return session.generate(question, max_tokens=12, ignore_eos=True).text


class KeptTest(TinyModelTest):
    def test_kept_sets_follow_the_rule(self):
        session = self.model.session()
        session.read(TEXT)
        seen = len(session)
        kept = session.kept()
        self.assertEqual((kept.layers, kept.kv_heads, kept.tokens_seen), (tiny_gguf.LAYERS, tiny_gguf.KV_HEADS, seen))
        for _, _, positions, scores in kept:
            self.assertEqual(positions.tolist(), [0, 1, 2, 3, *range(seen - 36, seen)])
            self.assertEqual(scores.tolist(), (positions - (seen - 1)).tolist())
        self.assertEqual(kept.counts.tolist(), [[40] * tiny_gguf.KV_HEADS] * tiny_gguf.LAYERS)
        self.assertEqual(kept.mask.sum(), len(kept))
        entry = 2 * 2 * tiny_gguf.HIDDEN // tiny_gguf.HEADS + 3 * 4 + 1  # key, value, three numbers, modality
        self.assertEqual(kept.bytes, 3 * 16 * ROWS * entry)  # in blocks of 16
        with self.assertRaises(IndexError):
            kept.positions(tiny_gguf.LAYERS, 0)

    def test_kept_counts_are_those_of_eval(self):
        data = self.dir / "documents.jsonl"
        data.write_text(json.dumps({"id": "a", "text": TEXT * 2}) + "\n")
        names = ["knorm", "adakv", "pyramidkv", "cake"]
        rows_file = self.dir / "kept.jsonl"
        self.program("eval", "kept", "--model", self.path, "--data", data, "--documents", 1, "--context", 256, "--chunk", 16,
                     "--policies", *names, "--budgets", 40, "--out", rows_file, "--json")
        rows = {row["policy"]: row for row in map(json.loads, rows_file.read_text().splitlines()) if row.get("budget") == 40}
        self.assertEqual(set(rows), set(names))
        ids = self.model.encode(TEXT * 2, begin=True)[:256]
        for name in names:
            session = self.model.using(policy=name).session()
            session.read(ids)
            self.assertEqual(session.kept().counts.ravel().tolist(), rows[name]["kept"], name)

    def test_rows_hold_keys_and_values(self):
        session = self.model.using(policy="knorm", kv_dtype="float32").session()
        session.read(TEXT)
        kept = session.kept()
        for layer, head, positions, scores in kept:
            row = session.row(layer, head)
            self.assertEqual(row.positions.tolist(), positions.tolist())
            self.assertEqual(row.keys.shape, (len(positions), tiny_gguf.HIDDEN // tiny_gguf.HEADS))
            self.assertEqual((row.keys.shape, row.keys.dtype), (row.values.shape, np.float32))
            np.testing.assert_allclose(scores, -np.linalg.norm(row.keys, axis=1), rtol=2e-4)
        half = self.model.using(kv_dtype="float16").session()
        half.read(TEXT)
        self.assertEqual(half.row(0, 0).keys.dtype, np.float16)
        brain = self.model.using(kv_dtype="bfloat16").session()
        brain.read(TEXT)
        self.assertEqual(brain.row(0, 0).keys.dtype, np.float32)
        empty = self.model.session()
        self.assertEqual((len(empty.kept()), len(empty.row(0, 0).positions), len(empty)), (0, 0, 0))
        with self.refused("there is no layer 9", "invalid_argument"):
            session.row(9, 0)

    def test_settings_and_sizes(self):
        snap = self.model.using(policy="snapkv", budget=32, policy_options={"window": 8}, floor=3).session()
        self.assertEqual({key: snap.settings[key] for key in ("policy", "budget_entries", "scope", "recent", "floor")},
                         {"policy": "snapkv", "budget_entries": 32, "scope": "head", "recent": 8, "floor": 3})
        self.assertEqual(snap.settings["options"]["window"], "8")
        self.assertEqual(self.model.using(policy="knorm").session().settings["options"], {})
        self.assertIsNone(self.model.using(budget="full").session().settings["budget_entries"])
        sizes = self.model.sizes
        self.assertEqual((sizes["layers"], sizes["kv_heads"], sizes["context"]), (tiny_gguf.LAYERS, tiny_gguf.KV_HEADS, tiny_gguf.CONTEXT))
        self.assertEqual(self.model.using(budget="12.5%").session(length=320).settings["budget_entries"], 40)
        self.assertIn("dbtrimkv", coppice.policies())


class RefusalTest(TinyModelTest):
    def test_what_is_wrong_is_said(self):
        with self.refused('no eviction policy "nothing"', "not_found"):
            self.model.using(policy="nothing").session()
        with self.refused("gate", "invalid_argument"):
            self.model.using(policy="dbtrimkv").generate("hi", max_tokens=1)
        with self.refused("budget"):
            self.model.using(budget="much")
        with self.refused("window"):
            self.model.using(policy="snapkv", policy_options={"windw": 3}).session()
        with self.refused("does/not/exist"):
            coppice.load("does/not/exist.gguf")
        with self.refused("temperature", "invalid_argument"):
            self.model.generate("hi", temperature=-1)
        with self.refused("positions for", "capacity"):
            self.model.generate("hi", max_tokens=100000)
        with self.refused("is 260"):
            self.model.generate([260], max_tokens=1)
        with self.refused("token 1 is -1"):
            self.model.generate([1, -1], max_tokens=1)
        with self.refused("chunk"):
            self.model.using(chunk=0).session()
        with self.refused("forks"):
            self.model.session(forks=0)
        with self.refused("nothing to fork"):
            self.model.session().fork()

    def test_wrong_types_are_pythons(self):
        cases = [
            (TypeError, "'budgt' is no setting", lambda: self.model.using(budgt=3)),
            (TypeError, "'max_token' is no setting", lambda: self.model.generate("hi", max_token=3)),
            (ValueError, "kv_dtype must be", lambda: self.model.using(kv_dtype="int8")),
            (ValueError, "weights must be", lambda: coppice.load(self.path, weights="int8")),
            (TypeError, "sinks: 'four'", lambda: self.model.using(sinks="four")),
            (TypeError, "top_k: 0.5", lambda: self.model.generate("hi", top_k=0.5)),
            (TypeError, "token ids", lambda: self.model.generate([0.5])),
            (TypeError, "token ids", lambda: self.model.generate([[1, 2]])),
            (TypeError, "ask()", lambda: self.model.chat().generate("hi")),
            (ValueError, "threads", lambda: coppice.load(self.path, threads=-1)),
        ]
        for kind, says, call in cases:
            with self.assertRaisesRegex(kind, says.replace("(", r"\(").replace(")", r"\)")):
                call()

    def test_a_failed_request_leaves_the_session(self):
        session = self.model.session()
        session.read(TEXT)
        before = session.kept().mask
        with self.refused("positions for"):
            session.generate("more", max_tokens=100000)
        np.testing.assert_array_equal(session.kept().mask, before)
        self.assertEqual(len(session.generate("more", max_tokens=3, ignore_eos=True).finish().tokens), 3)


class TorchTest(unittest.TestCase):
    """Both orders of import share one libtorch."""

    def test_one_libtorch(self):
        check = ("print(len({line.split()[-1] for line in open('/proc/self/maps') if 'libtorch_cpu' in line})); "
                 "print(float(torch.ones(3).sum()))")
        for order in ("import coppice, torch", "import torch, coppice"):
            done = subprocess.run([sys.executable, "-c", f"{order}; {check}"], capture_output=True, text=True, check=False)
            self.assertEqual(done.stdout.split(), ["1", "3.0"], done.stderr)

    def test_another_version_is_refused(self):
        code = (
            "import types, sys\n"
            "torch = types.ModuleType('torch'); torch.__version__ = '1.0.0+cpu'; torch.__file__ = '/nowhere/torch/__init__.py'\n"
            "sys.modules['torch'] = torch\n"
            "try:\n    import coppice\nexcept ImportError as error:\n    print(error)")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertIn("this environment has torch 1.0.0+cpu", done.stdout, done.stderr)

    def test_rows_as_torch(self):
        import torch  # after coppice, as users may

        row = coppice.RowContent(np.arange(3), np.ones((3, 2), np.float32), np.ones((3, 2), np.float16), np.zeros(3, np.float32))
        tensors = row.torch()
        self.assertEqual((tensors["keys"].dtype, tensors["values"].dtype), (torch.float32, torch.float16))
        self.assertEqual(tensors["positions"].tolist(), [0, 1, 2])


if __name__ == "__main__":
    if os.environ.get("COPPICE_BINARY") is None:
        sys.exit("COPPICE_BINARY names the program to compare with")
    unittest.main()
