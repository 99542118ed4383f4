#!/usr/bin/env python3
"""Policies written in Python: the same choices as the built-in ones whose rule they copy, and clean faults."""

import subprocess
import sys
import threading
import traceback
import unittest

import coppice
import numpy as np
from module_testing import ROWS, TEXT, TinyModelTest, tiny_gguf

BUDGET, WINDOW = 40, 8


@coppice.policy(sinks=4)
def newest(row):
    return row.positions


@coppice.policy(needs=["keys"])
def low_norm(row):
    norm = np.sqrt((row.keys ** 2).sum(axis=1, dtype=np.float32))
    return -((norm.view(np.uint32) + 0x200) & ~np.uint32(0x3FF)).view(np.float32)  # rounded as the built-in one


@coppice.policy(needs="keys")
def least_alike(row):
    unit = row.keys / np.linalg.norm(row.keys, axis=1, keepdims=True)
    mean = unit.mean(axis=0)
    return -unit @ (mean / np.linalg.norm(mean))


@coppice.policy(needs=["attention"], recent=WINDOW, window=WINDOW)
def looked_at(row):
    return row.attention.mean(axis=(0, 1))


class SameChoiceTest(TinyModelTest):
    def same(self, mine, policy, **cache):
        theirs = self.model.using(policy=policy, kv_dtype="float32", **cache)
        ours = self.model.using(policy=mine, kv_dtype="float32", **{k: v for k, v in cache.items() if k != "policy_options"})
        want = theirs.generate(TEXT, max_tokens=20, ignore_eos=True).finish()
        made = ours.generate(TEXT, max_tokens=20, ignore_eos=True).finish()
        self.assertEqual(made.text, want.text, policy)
        np.testing.assert_array_equal(made.session.kept().mask, want.session.kept().mask, policy)
        kv, limit = made.usage.kv, want.usage.kv
        self.assertEqual((kv.kept_entries, kv.peak_entries, kv.bytes_bound, kv.bytes_peak),
                         (limit.kept_entries, limit.peak_entries, limit.bytes_bound, limit.bytes_peak))
        self.assertEqual(kv.policy, made.session.settings["policy"])

    def test_built_in_rules_in_python(self):
        self.same(newest, "streaming")
        self.same(low_norm, "knorm")
        self.same(least_alike, "keydiff")
        self.same(looked_at, "snapkv", policy_options={"window": WINDOW, "kernel": 1})

    def test_protected_entries_and_floors(self):
        self.same(newest, "streaming", sinks=7, recent=5)
        self.same(low_norm, "knorm", sinks=3, recent=9)

    def test_any_object_with_a_score(self):
        class Norms:
            name = "norms"
            needs = ("keys",)
            score = staticmethod(low_norm)

        class Derived(coppice.Policy):
            needs = ["keys"]

            def score(self, row):
                return low_norm(row).tolist()

        self.same(Norms(), "knorm")
        self.same(Derived(), "knorm")
        self.same(lambda row: row.positions, "streaming", sinks=4)

    def test_scopes_say_who_competes(self):
        @coppice.policy(scope="global", floor=2)
        def by_layer(row):
            return np.full(len(row), float(row.layer))

        session = self.model.using(policy=by_layer).session()
        session.read(TEXT)
        counts = session.kept().counts
        self.assertEqual(counts.sum(), BUDGET * ROWS)
        self.assertTrue((counts >= 2).all() and counts[0].sum() == 2 * tiny_gguf.KV_HEADS, counts)

        @coppice.policy(scope="layer")
        def by_head(row):
            return np.full(len(row), float(row.head))

        session = self.model.using(policy=by_head).session()
        session.read(TEXT)
        self.assertTrue((session.kept().counts.sum(axis=1) == BUDGET * tiny_gguf.KV_HEADS).all())

    def test_what_a_score_sees(self):
        seen = []

        @coppice.policy(needs=["keys", "values", "queries", "attention"], window=WINDOW)
        def look(row):
            seen.append(row)
            return row.positions

        session = self.model.using(policy=look, budget=24, kv_dtype="float32").session()
        session.read(TEXT[:64])
        self.assertEqual({(row.layer, row.head) for row in seen}, {(i, j) for i in range(3) for j in range(2)})
        group, width = tiny_gguf.HEADS // tiny_gguf.KV_HEADS, tiny_gguf.HIDDEN // tiny_gguf.HEADS
        for row in seen:
            entries = len(row.positions)
            self.assertTrue((np.diff(row.positions) > 0).all() and row.positions[-1] == row.seen - 1)
            self.assertEqual((row.keys.shape, row.values.shape), ((entries, width), (entries, width)))
            self.assertEqual((row.queries.shape, row.attention.shape), ((WINDOW, group, width), (WINDOW, group, entries)))
            logits = np.einsum("wgd,ld->wgl", row.queries, row.keys)
            at = row.seen - WINDOW + np.arange(WINDOW)
            logits[np.broadcast_to(row.positions[None, None, :] > at[:, None, None], logits.shape)] = -np.inf
            shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
            np.testing.assert_allclose(row.attention, shares / shares.sum(axis=-1, keepdims=True), atol=1e-5)
        last = {(row.layer, row.head): row for row in seen}
        for (layer, head), row in last.items():
            content = session.row(layer, head)
            places = np.isin(row.positions, content.positions)
            np.testing.assert_array_equal(row.keys[places], content.keys)
            np.testing.assert_array_equal(row.values[places], content.values)

    def test_torch_tensors_are_scores(self):
        import torch

        self.same(coppice.policy(lambda row: torch.from_numpy(row.positions), sinks=4, name="tensors"), "streaming")


class FaultTest(TinyModelTest):
    def read_with(self, score, **settings):
        self.model.using(policy=coppice.policy(score, name="mine", **settings)).session().read(TEXT)

    def test_exceptions_are_the_scores_own_and_the_session_survives(self):
        class Moody(coppice.Policy):
            sinks = 4
            broken = False

            def score(self, row):
                if self.broken and row.layer == 1:
                    raise KeyError("not today")
                return row.positions

        moody = Moody()
        session = self.model.using(policy=moody).session()
        session.read(TEXT)
        moody.broken = True
        made = session.generate("more of the same, and then some", max_tokens=9, ignore_eos=True)
        frames = []
        try:
            made.finish()
        except KeyError as error:
            frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        self.assertIn("score", frames)
        self.assertEqual(made.finish_reason, "error")
        kept = session.kept()  # what was read is there: the chunk that could not be judged too
        self.assertGreater(kept.tokens_seen, len(self.model.encode(TEXT)))
        self.assertLessEqual(kept.counts.max(), BUDGET + 16)
        with self.assertRaises(KeyError):
            session.generate("again", max_tokens=3).finish()
        moody.broken = False
        again = session.generate("again", max_tokens=9, ignore_eos=True).finish()
        self.assertEqual(len(again.tokens), 9)
        seen = session.kept().tokens_seen
        for _, _, positions, _ in session.kept():
            self.assertEqual(positions.tolist(), [0, 1, 2, 3, *range(seen - BUDGET + 4, seen)])

    def test_a_chat_survives_too(self):
        broken = threading.Event()

        @coppice.policy
        def moody(row):
            if broken.is_set():
                raise RuntimeError("not today")
            return row.positions

        chat = self.model.using(policy=moody).chat()
        chat.ask(TEXT, max_tokens=4, ignore_eos=True).finish()
        broken.set()
        with self.assertRaisesRegex(RuntimeError, "not today"):
            chat.ask("more", max_tokens=4, ignore_eos=True).finish()
        self.assertEqual(len(chat.messages), 2)
        broken.clear()
        answer = chat.ask("more", max_tokens=4, ignore_eos=True).finish()
        self.assertEqual((answer.usage.tokens.reused, len(chat.messages)), (0, 4))

    def test_wrong_scores_are_described(self):
        cases = [
            (lambda row: row.positions[1:], "have the shape (47,), expected (48,): one for each entry"),
            (lambda row: row.positions[:, None], "have the shape (48, 1)"),
            (lambda row: 1.0, "have the shape ()"),
            (lambda row: np.float32(1), "have the shape ()"),
            (lambda row: None, "are None, expected 48 numbers"),
            (lambda row: np.where(row.positions == 3, np.nan, 1.0), "hold a NaN, for the entry of position 3"),
        ]
        for score, says in cases:
            with self.refused(says, "invalid_argument") as caught:
                self.read_with(score)
            self.assertIn("policy mine: the scores of layer 0, head 0", str(caught.exception))
        with self.assertRaises(ValueError):
            self.read_with(lambda row: ["low"] * len(row))
        with self.assertRaisesRegex(AttributeError, "needs=\\['keys', ...\\]"):
            self.read_with(lambda row: row.keys)

    def test_wrong_policies_are_described(self):
        def ones(row):
            return np.ones(len(row))

        for settings, says in (({"scope": "token"}, "scope is"), ({"window": 0}, "window must be"), ({"sinks": -1}, "sinks must be")):
            with self.refused(says, "invalid_argument"):
                self.read_with(ones, **settings)
        with self.refused("policy knorm is built in"):
            self.model.using(policy=coppice.policy(ones, name="knorm"))
        with self.assertRaisesRegex(ValueError, "needs names 'age'"):
            self.read_with(ones, needs=["age"])
        with self.assertRaisesRegex(TypeError, "is a class"):
            self.model.using(policy=coppice.Policy)
        with self.assertRaisesRegex(TypeError, "expected a name"):
            self.model.using(policy=3)
        with self.assertRaises(NotImplementedError):
            self.model.using(policy=coppice.Policy()).session().read(TEXT)
        with self.refused("needs a retention gate"):
            self.read_with(ones, needs=["log_beta"])
        with self.refused("do not fit a budget"):
            self.model.using(policy=newest, sinks=50).session().read(TEXT)

    def test_a_score_may_not_run_its_model(self):
        session = self.model.session()
        session.read(TEXT)
        with self.refused("may not use its model meanwhile"):
            self.read_with(lambda row: session.kept())

    def test_garbage_that_ends_inside_a_score(self):
        session = self.model.using(policy=newest).session(forks=3)
        session.read(TEXT)
        forks = [session.fork(), session.fork()]

        @coppice.policy(sinks=4)
        def collects(row):
            forks.clear()
            return row.positions

        self.model.using(policy=collects).session().read(TEXT)
        session.generate("a", max_tokens=2).finish()
        session.fork(), session.fork()

    def test_scores_in_threads(self):
        texts = []

        def work():
            texts.append(self.model.using(policy=low_norm).generate(TEXT, max_tokens=12, ignore_eos=True).text)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(texts), 3)
        self.assertEqual(len(set(texts)), 1)

    def test_an_end_in_the_middle_is_clean(self):
        code = ("import sys, coppice\n"
                f"model = coppice.load({self.path!r}, policy=coppice.policy(lambda row: row.positions, name='p'), budget=20)\n"
                f"made = model.generate({TEXT!r}, max_tokens=50, ignore_eos=True)\nnext(made)\nprint('out')\n")
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, "out\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
