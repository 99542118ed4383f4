#!/usr/bin/env python3
"""The server as a client meets it, on a tiny model. Needs no downloads."""

import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tiny_gguf  # noqa: E402
from serve_client import CHAT, COMPLETIONS, COPPICE, TEXT, MadeModelTest, Server, chat, complete  # noqa: E402

ROWS = tiny_gguf.LAYERS * tiny_gguf.KV_HEADS
BUDGET = 32
FLAGS = ["--kv-budget", BUDGET, "--chunk", 16, "--kv-pool", "512KiB", "--max-running", 8, "--max-body", "256KiB"]


def content(result, index=0):
    return result["choices"][index]["message"]["content"]


class ServeTest(MadeModelTest):
    flags = FLAGS

    def tearDown(self):
        metrics = self.server.metrics()  # the server lives, and its bound held
        self.assertLessEqual(metrics["coppice_kv_bytes_peak"], metrics["coppice_kv_bytes_bound"])
        self.assertLessEqual(metrics["coppice_kv_bytes_bound"], 512 * 1024)

    def refused(self, path, body, status=400, param=None, headers=None):
        got, result = self.server.post(path, body, headers)
        self.assertEqual(got, status, f"{str(body)[:200]}\n{result}")
        self.assertEqual(set(result["error"]), {"message", "type", "param", "code"})
        self.assertLess(len(json.dumps(result)), 1000)
        if param is not None:
            self.assertEqual(result["error"]["param"], param)
        return result["error"]

    def run_json(self, *args):
        done = subprocess.run([COPPICE, "run", "--model", self.model, "--json", "--kv-budget", str(BUDGET), "--chunk",
                               "16", "--max-tokens", "12", *args], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def test_answers_equal_those_of_run(self):
        for text in ("hello there", TEXT * 2):
            run = self.run_json(text)
            result = self.server.answer(CHAT, chat(text))
            self.assertEqual(content(result), run["text"])
            self.assertEqual(result["choices"][0]["finish_reason"], run["finish_reason"])
            self.assertEqual(result["usage"]["prompt_tokens"], run["tokens"]["prompt"])
            self.assertEqual(result["usage"]["completion_tokens"], run["tokens"]["generated"])
            for key in ("policy", "budget_entries", "kept_entries", "evicted_entries"):
                self.assertEqual(result["usage"]["kv"][key], run["kv"][key], key)
            raw = self.run_json("--raw", text)
            self.assertEqual(self.server.answer(COMPLETIONS, complete(text))["choices"][0]["text"], raw["text"])

    def test_usage_tells_what_the_cache_did(self):
        usage = self.server.answer(CHAT, chat(TEXT * 3, ignore_eos=True))["usage"]
        kv = usage["kv"]
        self.assertEqual(kv["seen"], usage["prompt_tokens"] + 11)
        self.assertEqual(kv["kept"], BUDGET * ROWS)
        self.assertEqual(kv["kept"] + kv["evicted"], kv["seen"] * ROWS)
        self.assertEqual((kv["budget"], kv["sinks"], kv["recent"]), (BUDGET, 4, 0))
        self.assertLessEqual(kv["bytes"], kv["bytes_bound"])
        asked = {"budget": 24, "policy": "knorm", "sinks": 2, "recent": 3}
        kv = self.server.answer(CHAT, chat(TEXT, kv=asked))["usage"]["kv"]
        self.assertEqual({key: kv[key] for key in asked}, asked)

    def test_A01_streams_equal_whole_answers_and_end_with_usage_when_asked(self):
        for body in (chat(TEXT), chat(TEXT, stop=["\n", "e"]), chat("x", max_tokens=0), chat("x", max_tokens=1)):
            whole = self.server.answer(CHAT, body)
            for include in (True, False, None):
                more = {} if include is None else {"stream_options": {"include_usage": include}}
                events = self.server.stream(CHAT, {**body, **more})
                chunks = [event for event in events if event["choices"]]
                text = "".join(event["choices"][0]["delta"].get("content", "") for event in chunks)
                self.assertEqual(text, content(whole))
                self.assertEqual(chunks[0]["choices"][0]["delta"]["role"], "assistant")
                ends = [event["choices"][0]["finish_reason"] for event in chunks]
                self.assertEqual([end for end in ends if end], [whole["choices"][0]["finish_reason"]])
                filled = [event for event in events if event.get("usage")]
                if include:
                    self.assertEqual(filled, events[-1:])
                    self.assertEqual(events[-1]["choices"], [])
                    self.assertEqual(events[-1]["usage"]["completion_tokens"], whole["usage"]["completion_tokens"])
                else:
                    self.assertEqual(filled, [])

    def test_A02_stop_texts_never_show(self):
        plain = content(self.server.answer(CHAT, chat(TEXT, max_tokens=40, ignore_eos=True)))
        for stop in (plain[3:5], plain[-2:], plain[5:12]):
            result = self.server.answer(CHAT, chat(TEXT, max_tokens=40, ignore_eos=True, stop=stop))
            self.assertEqual(content(result), plain[:plain.index(stop)])
            self.assertEqual(result["choices"][0]["finish_reason"], "stop")

    def test_A03_exact_token_counts(self):
        for count in (0, 1, 2, 30):
            for field in ("max_tokens", "max_completion_tokens"):
                body = chat("hello", ignore_eos=True)
                del body["max_tokens"]
                result = self.server.answer(CHAT, {**body, field: count})
                self.assertEqual(result["usage"]["completion_tokens"], count)
                self.assertEqual(result["choices"][0]["finish_reason"], "length")

    def test_A07_several_choices(self):
        result = self.server.answer(CHAT, chat(TEXT, n=3, temperature=1.5, seed=5))
        self.assertEqual([choice["index"] for choice in result["choices"]], [0, 1, 2])
        self.assertGreater(len({choice["message"]["content"] for choice in result["choices"]}), 1)
        alone = [content(self.server.answer(CHAT, chat(TEXT, temperature=1.5, seed=5 + i))) for i in range(3)]
        self.assertEqual([choice["message"]["content"] for choice in result["choices"]], alone)
        events = self.server.stream(CHAT, chat(TEXT, n=3, temperature=1.5, seed=5))
        for i in range(3):
            mine = [event["choices"][0] for event in events if event["choices"][0]["index"] == i]
            self.assertEqual("".join(choice["delta"].get("content", "") for choice in mine), alone[i])
            self.assertEqual(sum(choice["finish_reason"] is not None for choice in mine), 1)
        self.refused(CHAT, chat("x", n=0), param="n")
        self.refused(CHAT, chat("x", n=129), param="n")

    def test_completions_take_ids_lists_and_echo(self):
        ids = self.server.answer("/tokenize", {"prompt": TEXT})["tokens"]
        self.assertEqual(self.server.answer("/detokenize", {"tokens": ids})["prompt"], TEXT)
        text = self.server.answer(COMPLETIONS, complete(TEXT))["choices"][0]["text"]
        self.assertEqual(self.server.answer(COMPLETIONS, complete(ids))["choices"][0]["text"], text)
        both = self.server.answer(COMPLETIONS, complete([TEXT, "the hen"], n=2))
        self.assertEqual([choice["index"] for choice in both["choices"]], [0, 1, 2, 3])
        self.assertEqual([choice["text"] for choice in both["choices"][:2]], [text, text])
        self.assertEqual(both["usage"]["prompt_tokens"],
                         len(ids) + self.server.answer("/tokenize", {"prompt": "the hen"})["count"])
        echoed = self.server.answer(COMPLETIONS, complete(TEXT, echo=True))["choices"][0]["text"]
        self.assertEqual(echoed, TEXT + text)
        joined = "".join(event["choices"][0]["text"] for event in self.server.stream(COMPLETIONS, complete(TEXT, echo=True)))
        self.assertEqual(joined, echoed)

    def test_A05_logprobs_have_the_bytes_of_the_answer(self):
        result = self.server.answer(CHAT, chat(TEXT, logprobs=True, top_logprobs=2, ignore_eos=True, max_tokens=40))
        entries = result["choices"][0]["logprobs"]["content"]
        data = bytes(byte for entry in entries for byte in entry["bytes"])
        self.assertEqual(data.decode(errors="replace"), content(result))
        for entry in entries:
            self.assertEqual(len(entry["top_logprobs"]), 2)
            self.assertLessEqual(entry["top_logprobs"][1]["logprob"], entry["top_logprobs"][0]["logprob"])
            self.assertEqual(entry["top_logprobs"][0]["logprob"], entry["logprob"])  # greedy
        streamed = self.server.stream(CHAT, chat(TEXT, logprobs=True, top_logprobs=2, ignore_eos=True, max_tokens=40))
        parts = [event["choices"][0]["logprobs"] for event in streamed]
        self.assertEqual([entry for part in parts if part for entry in part["content"]], entries)
        scores = self.server.answer(COMPLETIONS, complete(TEXT, logprobs=2))["choices"][0]["logprobs"]
        self.assertEqual(len(scores["tokens"]), len(scores["token_logprobs"]))

    def test_sampling_options_reach_the_sampler(self):
        banned = content(self.server.answer(CHAT, chat(TEXT)))
        ids = self.server.answer("/tokenize", {"prompt": banned})["tokens"]
        other = content(self.server.answer(CHAT, chat(TEXT, logit_bias={str(ids[0]): -100})))
        self.assertNotEqual(other[:1], banned[:1])
        for more in ({"top_k": 1}, {"top_p": 0}, {"min_p": 1}, {"temperature": 1e-40}):  # S01, S02, S03
            self.assertEqual(content(self.server.answer(CHAT, chat(TEXT, **{"temperature": 1, **more}))), banned, more)
        hot = [content(self.server.answer(CHAT, chat(TEXT, temperature=1.5))) for _ in range(5)]
        self.assertGreater(len(set(hot)), 1)  # S09
        self.assertNotEqual(content(self.server.answer(CHAT, chat(TEXT, repetition_penalty=5.0))), banned)

    def test_A15_S13_many_at_once_equal_alone(self):
        bodies = [chat(TEXT[i:] * (1 + i % 3), max_tokens=8 + i, temperature=(0 if i % 2 else 1), seed=i)
                  for i in range(16)]
        alone = [content(self.server.answer(CHAT, body)) for body in bodies]
        with ThreadPoolExecutor(16) as pool:
            together = list(pool.map(lambda body: content(self.server.answer(CHAT, body)), bodies))
        self.assertEqual(together, alone)
        self.assertTrue(self.server.wait_until(lambda m: m["coppice_requests_running"] == 0))

    def test_K18_a_chat_reads_only_its_new_part_and_equals_a_cold_run(self):
        messages = [{"role": "user", "content": TEXT}]
        reused, cold = [], Server(self.model, *FLAGS, "--kv-reuse", "off")
        try:
            for turn in range(4):
                body = {"messages": messages, "temperature": 0, "max_tokens": 8, "ignore_eos": True}
                warm, fresh = self.server.answer(CHAT, body), cold.answer(CHAT, body)
                self.assertEqual(content(warm), content(fresh))
                self.assertEqual(fresh["usage"]["kv"]["reused"], 0)
                for key in ("seen", "kept", "evicted", "budget"):
                    self.assertEqual(warm["usage"]["kv"][key], fresh["usage"]["kv"][key], key)
                usage = warm["usage"]
                reused.append(usage["kv"]["reused"])
                self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], reused[-1])
                messages += [{"role": "assistant", "content": content(warm)}, {"role": "user", "content": f"and {turn}?"}]
        finally:
            self.assertEqual(cold.stop(), 0)
        self.assertEqual(reused[1:], sorted(reused[1:]))
        self.assertGreater(reused[-1], 64)

    def test_A04_a_client_that_leaves_frees_its_blocks(self):
        idle = self.server.metrics()["coppice_snapshot_bytes"]

        def leave(i):
            connection = socket.create_connection(("127.0.0.1", self.server.port))
            body = json.dumps(chat(TEXT * 3, max_tokens=200, ignore_eos=True, stream=i % 2 == 0)).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            connection.sendall(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body[: -(i % 5 == 4) or None])
            if i % 3:
                time.sleep(0.03 * (i % 3))
            connection.close()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(leave, range(40)))
        gone = self.server.wait_until(
            lambda m: m["coppice_requests_running"] == 0 and m["coppice_requests_waiting"] == 0
            and m["coppice_kv_bytes"] == m["coppice_snapshot_bytes"], 20)
        self.assertTrue(gone, self.server.metrics())
        self.assertGreaterEqual(idle, 0)
        self.assertEqual(content(self.server.answer(CHAT, chat("hello there"))), self.run_json("hello there")["text"])

    def test_A12_A13_A17_the_limit_is_what_is_advertised(self):
        limit = self.server.answer("/tokenize", {"prompt": "x"})["max_model_len"]
        models = json.loads(self.server.send("GET", "/v1/models")[2])
        self.assertEqual(models["data"][0]["max_model_len"], limit)
        for size in (limit - 2, limit - 1):
            self.assertEqual(self.server.answer(COMPLETIONS, complete([65] * size, max_tokens=1))["usage"]["prompt_tokens"], size)
        for size in (limit, limit + 1, 2 * limit):
            error = self.refused(COMPLETIONS, complete([65] * size, max_tokens=1))
            self.assertEqual(error["code"], "context_length_exceeded")
            self.server.answer(CHAT, chat("short", max_tokens=1))
        ended = self.server.answer(COMPLETIONS, {**complete([65] * 480, ignore_eos=True), "max_tokens": limit - 480})
        self.assertEqual(ended["choices"][0]["finish_reason"], "length")

    def test_A14_without_max_tokens_an_answer_ends_by_length(self):
        body = chat("hello", ignore_eos=True)
        del body["max_tokens"]
        result = self.server.answer(CHAT, body)
        self.assertEqual(result["choices"][0]["finish_reason"], "length")
        self.assertEqual(result["usage"]["total_tokens"], 512)

    def test_bad_values_are_refused_by_name(self):
        for field, value in (("temperature", -1), ("temperature", "x"), ("top_p", 1.5), ("top_p", -0.1), ("top_k", -2),
                             ("min_p", 2), ("repetition_penalty", 0), ("presence_penalty", 3), ("logit_bias", {"191222": 1}),
                             ("logit_bias", {"-1": 1}), ("logit_bias", {"1": 1e9}), ("stream", "false"), ("stop", ""),
                             ("messages", "hi"), ("messages", []), ("tools", [{"type": "function"}]), ("unknown", 1),
                             ("max_tokens", -1), ("max_tokens", "5"), ("max_tokens", 2**31),
                             ("kv", {"budget": 2**31 - 1, "sinks": 2**31 - 1, "recent": 1}), ("kv", {"policy": "magic"}),
                             ("kv", {"budget": 3}), ("kv", {"policy": "dbtrimkv", "budget": 16}), ("kv", {"keep": [0]})):
            with self.subTest(field=field, value=value):
                error = self.refused(CHAT, {**chat("x"), field: value})
                self.assertIn(field, error["message"] + str(error["param"]))
        self.refused(COMPLETIONS, complete([0, 260]), 400)  # S11: outside the vocabulary
        for value in ([-1], [2**31], 5, {}, None):
            self.refused(COMPLETIONS, complete(value), param="prompt")
        self.refused(CHAT, chat("x", response_format={"type": "json_object"}), param="response_format")
        image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]
        self.refused(CHAT, {**chat("x"), "messages": image})

    def test_bad_bodies(self):
        for body in (b"[]", b"5", b'"x"', b"true", b"", b"{", b"{\"a\":" * 3000, b"[" * 100000, b"\xff\xfe{\x00}\x00",
                     b'{"messages": "\xff"}', b'{"tools":' + b"[" * 3000 + b"]" * 3000 + b"}", bytes(200000), b"x" * 200000,
                     b'{"messages":[{"role":"user","content":"a"}],"messages":[]}'):
            with self.subTest(body=body[:30]):
                self.refused(CHAT, body)
        self.refused(CHAT, json.dumps(chat("x")).encode("utf-16"), 400)

    def test_A16_unknown_models(self):
        self.refused(CHAT, chat("x", model="no" * 100000), 404, "model")
        self.refused(CHAT, b'{"model":"\xff\xfe","messages":[]}', 400)
        self.server.answer(CHAT, chat("x", model="tiny"))
        status, _, data = self.server.send("GET", "/v1/models/other")
        self.assertEqual((status, json.loads(data)["error"]["code"]), (404, "model_not_found"))
        self.assertEqual(self.server.send("GET", "/v1/models/tiny")[0], 200)

    def test_http_refusals(self):
        self.assertEqual(self.server.send("GET", "/health")[0], 200)
        self.assertEqual(self.server.send("GET", "/nothing")[0], 404)
        self.assertEqual(self.server.send("POST", "/nothing", {})[0], 404)
        self.assertEqual(self.server.send("GET", CHAT)[0], 405)
        self.assertEqual(self.server.send("DELETE", CHAT)[0], 405)
        self.assertEqual(self.server.send("GET", "/../../etc/passwd")[0], 404)
        for headers in ({"Content-Type": "text/plain"}, {"Content-Type": "application/json; charset=utf-16"},
                        {"Content-Encoding": "gzip"}, {"Content-Type": "multipart/form-data; boundary=x"}):
            self.refused(CHAT, chat("x"), 415, headers=headers)
        self.refused(CHAT, chat("x"), 403, headers={"Host": "evil.example"})

    def test_bodies_above_the_limit(self):
        self.refused(CHAT, chat("x" * 300_000), 413)
        connection = self.server.connect()

        def pieces():
            for _ in range(400):
                yield b"x" * 1024

        try:  # no Content-Length: cut while it comes
            connection.request("POST", CHAT, pieces(), {"Content-Type": "application/json"}, encode_chunked=True)
            self.assertEqual(connection.getresponse().status, 413)
        except (BrokenPipeError, ConnectionResetError):
            pass
        connection.close()
        with socket.create_connection(("127.0.0.1", self.server.port)) as raw:  # a gigabyte is announced
            raw.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                        f"Content-Length: {10**9}\r\n\r\n".encode())
            self.assertIn(b"413", raw.recv(1000))
        self.server.answer(CHAT, chat("x", max_tokens=1))

    def test_garbage_instead_of_http(self):
        for data in (b"\0" * 1_000_000, b"GET " + b"a" * 100_000, b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100_000,
                     b"GET / HTTP/9.9\r\n\r\n", b"\r\n" * 1000, b"POST /tokenize HTTP/1.1\r\nContent-Type: application/json\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\nzzz\r\n", bytes(range(256)) * 4000):
            with socket.create_connection(("127.0.0.1", self.server.port)) as raw:
                raw.settimeout(30)
                try:
                    raw.sendall(data)
                    raw.shutdown(socket.SHUT_WR)
                    while raw.recv(65536):
                        pass
                except OSError:
                    pass
            self.assertEqual(self.server.send("GET", "/health")[0], 200)

    def test_idle_connections_give_way(self):
        idle = [socket.create_connection(("127.0.0.1", self.server.port)) for _ in range(700)]
        began = time.time()
        self.server.answer(CHAT, chat("x", max_tokens=1))
        self.assertLess(time.time() - began, 20)
        for connection in idle:
            connection.close()

    def test_a_connection_serves_many_requests(self):
        connection = self.server.connect()
        for _ in range(20):
            connection.request("POST", "/tokenize", b'{"prompt":"x"}', {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.assertEqual(response.status, 200)
            response.read()
        connection.close()


class OtherServersTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.model = str(pathlib.Path(self.folder.name) / "tiny.gguf")
        tiny_gguf.write(self.model)

    def tearDown(self):
        self.folder.cleanup()

    def test_keys_are_asked_for(self):
        server = Server(self.model, *FLAGS, "--api-key", "first", "--api-key", "second")
        self.assertEqual(server.send("GET", "/health")[0], 200)
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "first"}, {"Authorization": "Bearer "},
                        {"Authorization": "Basic first"}):
            self.assertEqual(server.send("GET", "/v1/models", None, headers)[0], 401, headers)
            self.assertEqual(server.send("GET", "/metrics", None, headers)[0], 401, headers)
            self.assertEqual(server.send("POST", CHAT, chat("x"), headers)[0], 401, headers)
        for key in ("first", "second"):
            headers = {"Authorization": f"Bearer {key}", "Host": "other.example"}
            self.assertEqual(server.send("POST", CHAT, chat("x"), headers)[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_a_full_queue_is_429_and_a_small_pool_makes_requests_wait(self):
        server = Server(self.model, *FLAGS[:-6], "--kv-pool", "64KiB", "--max-running", 2, "--max-requests", 4)
        with ThreadPoolExecutor(12) as pool:
            got = list(pool.map(lambda i: server.post(CHAT, chat(TEXT, max_tokens=100, ignore_eos=True))[0], range(12)))
        self.assertEqual(set(got), {200, 429})
        self.assertGreaterEqual(got.count(200), 4)
        status, result = server.post(CHAT, chat("x", kv={"budget": "full"}, max_tokens=400))  # never fits
        self.assertEqual((status, result["error"]["code"]), (400, "context_length_exceeded"))
        metrics = server.metrics()
        self.assertLessEqual(metrics["coppice_kv_bytes_peak"], 64 * 1024)
        self.assertEqual(metrics["coppice_requests_refused_total"], got.count(429))
        self.assertEqual(server.stop(), 0)

    def test_the_ceiling_holds(self):
        server = Server(self.model, *FLAGS, "--kv-ceiling", 40)
        self.assertEqual(server.post(CHAT, chat(TEXT, kv={"budget": 41}))[0], 400)
        self.assertEqual(server.answer(CHAT, chat(TEXT, kv={"budget": 40}))["usage"]["kv"]["budget"], 40)
        self.assertEqual(server.stop(), 0)

    def test_a_stop_lets_answers_end(self):
        for how in (signal.SIGTERM, signal.SIGINT):
            server = Server(self.model, *FLAGS)
            results = []
            thread = threading.Thread(target=lambda: results.append(
                server.post(CHAT, chat(TEXT, max_tokens=300, ignore_eos=True))))
            thread.start()
            self.assertTrue(server.wait_until(lambda m: m["coppice_requests_running"] > 0))
            self.assertEqual(server.stop(how), 0)
            thread.join()
            self.assertEqual(results[0][0], 200)
            self.assertEqual(results[0][1]["usage"]["completion_tokens"], 300)

    def test_wrong_flags(self):
        for flags in (["--kv-pool", "12"], ["--kv-pool", "1KiB"], ["--port", "70000"], ["--host", "no.such.host.example"],
                      ["--max-body", "x"]):
            done = subprocess.run([COPPICE, "serve", "--model", self.model, *flags], capture_output=True, text=True,
                                  check=False, timeout=60)
            self.assertEqual(done.returncode, 2, f"{flags} {done.stderr}")


if __name__ == "__main__":
    unittest.main()
