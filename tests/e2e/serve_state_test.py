#!/usr/bin/env python3
"""What a server keeps apart or keeps for later: scores of prompts, thinking, tool calls, saved sessions. On tiny
models, one of which gives an answer that is known in advance. Needs no downloads."""

import json
import pathlib
import signal
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import chain_gguf  # noqa: E402
import tiny_gguf  # noqa: E402
from serve_client import CHAT, COMPLETIONS, TEXT, MadeModelTest, Server, complete  # noqa: E402

SESSIONS = "/v1/sessions"
FLAGS = ["--chunk", 16, "--kv-pool", "512KiB", "--policy", "streaming"]
TOOLS = [{"type": "function", "function": {"name": chain_gguf.NAME, "description": "the weather of a city",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]


class PromptScores(MadeModelTest):
    flags = [*FLAGS, "--kv-budget", "full"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.ids = cls.server.answer("/tokenize", {"prompt": TEXT})["tokens"]

    def scores(self, prompt, **more):
        return self.server.answer(COMPLETIONS, complete(prompt, echo=True, logprobs=1, max_tokens=0, **more))["choices"][0]

    def test_equal_what_shorter_prompts_predict(self):
        lists = self.scores(self.ids)["logprobs"]
        self.assertEqual(lists["token_logprobs"][0], None)
        self.assertEqual(len(lists["tokens"]), len(self.ids))
        for read in (1, 2, 15, 16, 17, 40):  # about the borders of chunks
            next_one = self.server.answer(COMPLETIONS, complete(self.ids[:read], max_tokens=1, logprobs=1))
            best = next_one["choices"][0]["logprobs"]["token_logprobs"][0]
            self.assertAlmostEqual(max(lists["top_logprobs"][read].values()), best, places=5)
            self.assertLessEqual(lists["token_logprobs"][read], best + 1e-6)

    def test_streams_and_generated_tokens_join_them(self):
        body = complete(TEXT, echo=True, logprobs=2, max_tokens=5, ignore_eos=True)
        whole = self.server.answer(COMPLETIONS, body)["choices"][0]
        self.assertTrue(whole["text"].startswith(TEXT))
        self.assertEqual(len(whole["logprobs"]["tokens"]), len(self.ids) + 5)
        alone = self.scores(TEXT)
        self.assertEqual(alone["text"], TEXT)
        self.assertEqual(alone["logprobs"]["token_logprobs"],
                         whole["logprobs"]["token_logprobs"][:len(self.ids)])
        parts = [event["choices"][0] for event in self.server.stream(COMPLETIONS, body)]
        self.assertEqual("".join(part["text"] for part in parts), whole["text"])
        for key in ("tokens", "token_logprobs", "text_offset"):
            joined = [value for part in parts if part["logprobs"] for value in part["logprobs"][key]]
            self.assertEqual(joined, whole["logprobs"][key], key)

    def test_are_those_of_the_bounded_cache(self):
        full = self.scores(TEXT * 3)["logprobs"]["token_logprobs"]
        bounded = self.scores(TEXT * 3, kv={"budget": 24})["logprobs"]["token_logprobs"]
        self.assertEqual(full[:17], bounded[:17])  # nothing is gone before the first eviction
        self.assertNotEqual(full[-60:], bounded[-60:])
        self.assertEqual(full, self.scores(TEXT * 3, kv={"budget": 400})["logprobs"]["token_logprobs"])


class ToolCalls(MadeModelTest):
    make, name, flags = staticmethod(chain_gguf.write), "chain", [*FLAGS, "--kv-budget", "full"]

    def body(self, **more):
        return {"messages": [{"role": "user", "content": "Weather in Paris?"}], "temperature": 0, "max_tokens": 40, **more}

    def test_A_calls_and_thinking_stand_apart(self):
        choice = self.server.answer(CHAT, self.body(tools=TOOLS))["choices"][0]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        message = choice["message"]
        self.assertEqual(message["content"], chain_gguf.SAID)
        self.assertEqual(message["reasoning_content"], chain_gguf.THOUGHT)
        (call,) = message["tool_calls"]
        self.assertEqual(call["type"], "function")
        self.assertEqual(call["function"]["name"], chain_gguf.NAME)
        self.assertEqual(json.loads(call["function"]["arguments"]), json.loads(chain_gguf.ARGUMENTS))

    def test_A_streams_bring_the_same(self):
        parts = [event["choices"][0] for event in self.server.stream(CHAT, self.body(tools=TOOLS))]
        text = "".join(part["delta"].get("content") or "" for part in parts)
        thought = "".join(part["delta"].get("reasoning_content") or "" for part in parts)
        calls = [call for part in parts for call in part["delta"].get("tool_calls", [])]
        self.assertEqual((text, thought), (chain_gguf.SAID, chain_gguf.THOUGHT))
        self.assertEqual([(call["index"], call["function"]["name"]) for call in calls], [(0, chain_gguf.NAME)])
        self.assertEqual([part["finish_reason"] for part in parts if part["finish_reason"]], ["tool_calls"])

    def test_without_tools_a_call_is_text(self):
        for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            choice = self.server.answer(CHAT, self.body(**more))["choices"][0]
            self.assertEqual(choice["finish_reason"], "stop")
            self.assertIn("<tool_call>", choice["message"]["content"])
            self.assertNotIn("tool_calls", choice["message"])

    def test_results_of_tools_are_read(self):
        call = {"id": "c1", "type": "function", "function": {"name": chain_gguf.NAME, "arguments": chain_gguf.ARGUMENTS}}
        messages = [*self.body()["messages"], {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "c1", "content": "rain"}]
        without = self.server.answer(CHAT, self.body(tools=TOOLS))["usage"]["prompt_tokens"]
        result = self.server.answer(CHAT, self.body(messages=messages, tools=TOOLS))
        self.assertGreater(result["usage"]["prompt_tokens"], without + len("rain"))


class Sessions(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = pathlib.Path(self.folder.name) / "tiny.gguf"
        tiny_gguf.write(self.model)
        self.saved = pathlib.Path(self.folder.name) / "sessions"
        self.servers = []

    def tearDown(self):
        for server in self.servers:
            server.stop(signal.SIGKILL)
        self.folder.cleanup()

    def start(self, *flags):
        self.servers.append(Server(self.model, *FLAGS, "--kv-budget", 24, "--session-dir", self.saved, *flags))
        return self.servers[-1]

    def refused(self, server, status, name, path=None):
        got, result = server.post(path or f"{SESSIONS}/{name}/restore", {})
        self.assertEqual(got, status, result)

    def test_K27_a_restored_session_goes_on_as_if_nothing_had_been(self):
        server = self.start()
        first = server.answer(COMPLETIONS, complete(TEXT * 3))
        reply = server.answer(SESSIONS, {"name": "book-1", "prompt": TEXT * 3})
        self.assertEqual(reply["id"], "book-1")
        self.assertEqual([entry["id"] for entry in json.loads(server.send("GET", SESSIONS)[2])["data"]], ["book-1"])
        turn = complete(TEXT * 3 + "And then? " + TEXT)
        unbroken = server.answer(COMPLETIONS, turn)
        self.assertEqual(server.stop(), 0)
        server = self.start()
        cold = server.answer(COMPLETIONS, complete("x" + TEXT))  # something else is in the cache
        self.assertEqual(cold["usage"]["kv"]["reused"], 0)
        self.assertEqual(server.answer(f"{SESSIONS}/book-1/restore", {})["tokens"], reply["tokens"])
        restored = server.answer(COMPLETIONS, turn)
        self.assertGreaterEqual(restored["usage"]["kv"]["reused"], reply["tokens"])
        self.assertGreater(restored["usage"]["kv"]["evicted"], 0)
        self.assertEqual(restored["choices"], unbroken["choices"])
        self.assertEqual(server.answer(COMPLETIONS, complete(TEXT * 3))["choices"], first["choices"])
        status, _, _ = server.send("DELETE", f"{SESSIONS}/book-1")
        self.assertEqual(status, 200)
        self.refused(server, 404, "book-1")

    def test_damaged_and_foreign_files_are_refused(self):
        server = self.start()
        server.answer(SESSIONS, {"name": "a", "prompt": TEXT * 3})
        (file,) = self.saved.iterdir()
        sound = file.read_bytes()
        damaged = bytearray(sound)
        damaged[len(sound) // 2] ^= 1
        for content in (bytes(damaged), sound[:-1], sound[:100], b"", b"GGUF" + sound, sound + b"x"):
            file.write_bytes(content)
            self.refused(server, 409, "a")
        file.write_bytes(sound)
        server.answer(f"{SESSIONS}/a/restore", {})
        self.refused(self.start("--kv-dtype", "float32"), 409, "a")  # another cache
        for name in ("..", "a/b", "a%2Fb", "a.b", "x" * 65):
            self.assertIn(server.post(f"{SESSIONS}/{name}/restore", {})[0], (400, 404))
            status, result = server.post(SESSIONS, {"name": name, "prompt": TEXT})
            self.assertEqual((status, result["error"]["param"]), (400, "name"))
        self.assertEqual(len(list(self.saved.iterdir())), 1)

    def test_limits_and_a_server_without_sessions(self):
        server = self.start("--session-bytes", "1KiB")
        status, result = server.post(SESSIONS, {"name": "a", "prompt": TEXT * 3})
        self.assertEqual(status, 507, result)
        self.assertEqual(list(self.saved.iterdir()), [])
        status, _ = server.post(SESSIONS, {"name": "a", "prompt": "hi"})
        self.assertEqual(status, 400)  # shorter than a chunk
        plain = Server(self.model, *FLAGS, "--kv-budget", 24)
        self.servers.append(plain)
        self.assertEqual(plain.post(SESSIONS, {"name": "a", "prompt": TEXT * 3})[0], 404)

    def test_a_killed_server_leaves_whole_files_alone(self):
        server = self.start()
        names = [f"s{i}" for i in range(200)]

        def save():
            try:
                for name in names:
                    server.post(SESSIONS, {"name": name, "prompt": f"{name} " + TEXT * 3})
            except OSError:
                pass

        threads = [threading.Thread(target=save) for _ in range(3)]
        for thread in threads:
            thread.start()
        until = time.time() + 20
        while time.time() < until and len(list(self.saved.glob("*.session"))) < 3:
            time.sleep(0.005)
        server.stop(signal.SIGKILL)
        for thread in threads:
            thread.join()
        server = self.start("--kv-reuse", "400KiB")
        listed = [entry["id"] for entry in json.loads(server.send("GET", SESSIONS)[2])["data"]]
        self.assertGreaterEqual(len(listed), 3)
        for name in listed:
            server.answer(f"{SESSIONS}/{name}/restore", {})
        self.assertEqual(sorted(path.name for path in self.saved.iterdir()),
                         sorted(f"{name}.session" for name in listed))


if __name__ == "__main__":
    unittest.main()
