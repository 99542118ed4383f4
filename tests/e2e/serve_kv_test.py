#!/usr/bin/env python3
"""What requests say of the cache: pinned messages, budgets that give way. On a tiny model with random weights; needs no downloads."""

import json
import pathlib
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tiny_gguf  # noqa: E402
from serve_client import CHAT, COMPLETIONS, TEXT, MadeModelTest, Server, complete  # noqa: E402

ROWS = tiny_gguf.LAYERS * tiny_gguf.KV_HEADS
FLAGS = ["--policy", "streaming", "--kv-budget", 64, "--chunk", 16, "--kv-pool", "512KiB", "--max-running", 8]
ROLES = {"system": "<|im_start|>system\n", "user": "<|im_start|>user\n", "assistant": "<|im_start|>assistant\n"}


class Pins(MadeModelTest):
    flags = FLAGS

    def talk(self, *texts):
        roles = ["system", "user", "assistant", "user", "assistant", "user"]
        return [{"role": role, "content": text} for role, text in zip(roles, texts)]

    def body(self, messages, keep, **more):
        return {"messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True,
                "kv": {"keep": keep, **more.pop("kv", {})}, **more}

    def tokens_of(self, message):
        """Of a message as the template writes it: control tokens are one each."""
        text = f"{ROLES[message['role']]}{message['content']}<|im_end|>\n"
        return len(self.server.answer("/tokenize", {"prompt": text})["tokens"])

    def test_the_whole_message_is_pinned_and_told(self):
        messages = self.talk("Be kind.", TEXT * 2, "Yes.", TEXT)
        for keep in ([0], [2], [0, 2], [2, 0, 2], []):
            kv = self.server.answer(CHAT, self.body(messages, keep))["usage"]["kv"]
            self.assertEqual(kv["keep"], sorted(set(keep)))
            self.assertEqual(kv["pinned"], sum(self.tokens_of(messages[i]) for i in set(keep)))
            self.assertEqual(kv["kept"], 64 * ROWS)
            self.assertGreater(kv["evicted"], 0)

    def test_they_change_what_is_kept_under_every_policy_without_a_gate(self):
        messages = self.talk("Be kind.", TEXT, "Yes it is so.", TEXT)
        for policy in ("streaming", "knorm", "random", "h2o", "tova", "snapkv", "pyramidkv", "adakv", "rkv", "cake",
                       "keydiff", "expected-attention", "ada-pyramid"):
            kv = self.server.answer(CHAT, self.body(messages, [2], kv={"policy": policy}))["usage"]["kv"]
            self.assertEqual((kv["policy"], kv["kept"]), (policy, 64 * ROWS))
            self.assertEqual(kv["pinned"], self.tokens_of(messages[2]))

    def test_A11_what_does_not_fit_is_refused_and_the_next_is_served(self):
        messages = self.talk("Be kind.", TEXT, "Yes.")
        for keep, message in (([1], "pinned tokens"), ([3], "0 to 2, got 3"), ([0, 2**31 - 1], "0 to 2")):
            status, result = self.server.post(CHAT, self.body(messages, keep))
            self.assertEqual((status, result["error"]["param"]), (400, "kv.keep"), result)
            self.assertIn(message, result["error"]["message"])
            self.server.answer(CHAT, self.body(messages, [2]))
        kv = {"budget": self.tokens_of(messages[1]) + 4}  # with the sinks, and nothing beside
        self.assertEqual(self.server.answer(CHAT, self.body(messages, [1], kv=kv))["usage"]["kv"]["kept"], kv["budget"] * ROWS)
        kv["budget"] -= 1
        self.assertEqual(self.server.post(CHAT, self.body(messages, [1], kv=kv))[0], 400)
        status, result = self.server.post(COMPLETIONS, complete(TEXT, kv={"keep": [0]}))
        self.assertEqual((status, result["error"]["param"]), (400, "kv.keep"))

    def test_S13_many_at_once_equal_alone(self):
        bodies = [self.body(self.talk(f"Rule {i}.", TEXT * (1 + i % 3), "Yes.", TEXT), [i % 3 and 2, 0]) for i in range(8)]
        text = [self.server.answer(CHAT, body)["choices"] for body in bodies]
        with ThreadPoolExecutor(8) as pool:
            together = list(pool.map(lambda body: self.server.answer(CHAT, body)["choices"], bodies))
        self.assertEqual(together, text)

    def test_K18_turns_reuse_and_equal_a_cold_run(self):
        cold = Server(self.model, *FLAGS, "--kv-reuse", "off")
        try:
            messages, reused = self.talk("Never lie, ever.", TEXT), []
            for turn in range(4):
                keep = [0, len(messages) - 1] if turn % 2 and len(messages[-1]["content"]) < 30 else [0]
                body = self.body(messages, keep, max_tokens=6)
                warm, fresh = self.server.answer(CHAT, body), cold.answer(CHAT, body)
                self.assertEqual(warm["choices"], fresh["choices"], turn)
                for key in ("kept", "evicted", "pinned"):
                    self.assertEqual(warm["usage"]["kv"][key], fresh["usage"]["kv"][key], key)
                reused.append(warm["usage"]["kv"]["reused"])
                messages += [warm["choices"][0]["message"], {"role": "user", "content": f"and {turn}?"}]
                messages[-2] = {"role": "assistant", "content": messages[-2]["content"]}
        finally:
            self.assertEqual(cold.stop(), 0)
        self.assertGreater(reused[-1], 64)


class SharedBeginnings(MadeModelTest):
    flags = FLAGS

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.cold = Server(cls.model, *FLAGS, "--kv-reuse", "off")

    @classmethod
    def tearDownClass(cls):
        super().tearDownClass()
        assert cls.cold.stop() == 0

    def reused(self, messages, **kv):
        """Tokens that were not read again; the answer is that of a server that reads all."""
        body = {"messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
        warm = self.server.answer(CHAT, {**body, "kv": kv} if kv else body)
        fresh = self.cold.answer(CHAT, body)
        self.assertEqual(warm["choices"], fresh["choices"])
        for key in ("kept", "evicted", "seen"):
            self.assertEqual(warm["usage"]["kv"][key], fresh["usage"]["kv"][key], key)
        self.assertEqual(warm["usage"]["kv"]["mark"], kv.get("mark", []))
        return warm["usage"]["kv"]["reused"]

    def test_K18_a_system_message_is_read_once_for_all_chats(self):
        system = {"role": "system", "content": f"Be kind. {TEXT}"}
        chats = [[system, {"role": "user", "content": text}] for text in ("Hello you.", f"What is this? {TEXT}", "And?")]
        self.assertEqual(self.reused(chats[0]), 0)
        first = self.reused(chats[1])
        text = f"{ROLES['system']}{system['content']}<|im_end|>\n"
        size = len(self.server.answer("/tokenize", {"prompt": text})["tokens"])
        self.assertEqual(first, size // 16 * 16)
        self.assertGreater(first, 16)
        self.assertEqual(self.reused(chats[2]), first)

    def test_K18_marked_beginnings_are_shared_and_others_are_not(self):
        for mark, start in (([], "No."), ([1], "Yes.")):
            talk = [{"role": "user", "content": f"{start} {TEXT}"}, {"role": "assistant", "content": TEXT[5:]}]
            asks = [[*talk, {"role": "user", "content": f"{question} {TEXT}"}] for question in ("Who?", "When was it?")]
            self.assertEqual(self.reused(asks[0], **({"mark": mark} if mark else {})), 0)
            found = self.reused(asks[1])
            self.assertEqual(found % 16, 0)
            self.assertEqual(found > 0, bool(mark))

    def test_A11_marks_that_cannot_be_are_refused(self):
        messages = [{"role": "user", "content": "Hello."}]
        for server, kv in ((self.server, {"mark": [1]}), (self.server, {"mark": [0], "policy": "snapkv"}), (self.cold, {"mark": [0]})):
            status, result = server.post(CHAT, {"messages": messages, "max_tokens": 4, "kv": kv})
            self.assertEqual((status, result["error"]["param"]), (400, "kv.mark"), result)


class PoolMemory(MadeModelTest):
    def resident(self, *flags):
        """Bytes of the process before and after some answers."""
        server = Server(self.model, *FLAGS[:-4], "--kv-pool", "96MiB", *flags)
        try:
            statm = pathlib.Path(f"/proc/{server.process.pid}/statm")
            read = lambda: int(statm.read_text(encoding="utf-8").split()[1]) * 4096  # noqa: E731
            before = read()
            for i in range(4):
                server.answer(COMPLETIONS, complete(TEXT[i:] * 3, max_tokens=8))
            return before, read()
        finally:
            self.assertEqual(server.stop(), 0)

    def test_the_pool_is_there_from_the_start_unless_it_is_lazy(self):
        early, lazy = self.resident(), self.resident("--kv-lazy")
        self.assertGreater(early[0] - lazy[0], 80 << 20)
        self.assertLess(early[1] - early[0], 32 << 20)  # nothing of the pool comes later


class AdaptiveBudgets(MadeModelTest):
    flags = [*FLAGS[:-4], "--kv-pool", "64KiB", "--max-running", 4, "--kv-min-budget", 16, "--kv-reuse", "off"]

    def body(self, i=0, **kv):
        return complete(TEXT[i:] * 2, max_tokens=60, ignore_eos=True, **({"kv": kv} if kv else {}))

    def told(self, body):
        return self.server.answer(COMPLETIONS, body)["usage"]["kv"]

    def test_alone_it_gets_all(self):
        for _ in range(2):
            kv = self.told(self.body())
            self.assertEqual((kv["budget"], kv["least_budget"], kv["min_budget"]), (64, 64, 16))
            self.assertEqual(kv["kept"], 64 * ROWS)
        self.assertEqual(json.loads(self.server.send("GET", "/v1/models")[2])["data"][0]["kv"]["min_budget"], 16)

    def test_many_at_once_all_end_within_the_bound(self):
        bodies = [self.body(i, **([{}, {"budget": 40}, {"budget": 40, "min_budget": 24}][i % 3])) for i in range(18)]
        exact = [self.server.answer(COMPLETIONS, body)["choices"] for body in bodies[1::3]]
        before = self.server.metrics()["coppice_requests_squeezed_total"]
        with ThreadPoolExecutor(18) as pool:
            results = list(pool.map(lambda body: self.server.answer(COMPLETIONS, body), bodies))
        self.assertEqual([result["choices"] for result in results[1::3]], exact)
        squeezed = 0
        for i, result in enumerate(results):
            kv = result["usage"]["kv"]
            least, most = [(16, 64), (40, 40), (24, 40)][i % 3]
            self.assertEqual(kv["min_budget"], least)
            self.assertTrue(least <= kv["least_budget"] <= kv["budget"] <= most, kv)
            self.assertLessEqual(kv["kept"], kv["budget"] * ROWS)
            squeezed += kv["least_budget"] < most
        self.assertGreater(squeezed, 2)
        self.assertTrue(self.server.wait_until(lambda m: m["coppice_requests_running"] == m["coppice_requests_squeezed"] == 0))
        metrics = self.server.metrics()
        self.assertEqual(metrics["coppice_requests_squeezed_total"], before + squeezed)
        self.assertLessEqual(metrics["coppice_kv_bytes_peak"], metrics["coppice_kv_bytes_bound"])
        self.assertLessEqual(metrics["coppice_kv_bytes_bound"], 64 * 1024)
        self.assertEqual(self.told(self.body())["least_budget"], 64)  # the pressure is gone

    def test_what_makes_no_sense_is_refused(self):
        for kv in ({"min_budget": 65}, {"budget": 40, "min_budget": 41}, {"min_budget": 0}, {"budget": "full", "min_budget": 20}):
            status, result = self.server.post(COMPLETIONS, {**self.body(), "kv": kv})
            self.assertEqual((status, result["error"]["param"]), (400, "kv.min_budget"), result)
        plain = Server(self.model, *FLAGS)
        self.assertEqual(plain.post(COMPLETIONS, self.body(min_budget=20))[0], 400)
        kv = plain.answer(COMPLETIONS, self.body())["usage"]["kv"]
        self.assertEqual((kv["budget"], kv["least_budget"], kv["min_budget"]), (64, 64, 64))
        self.assertEqual(plain.stop(), 0)


if __name__ == "__main__":
    unittest.main()
