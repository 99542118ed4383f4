#!/usr/bin/env python3
"""Faults from outside: a full disk, readers that do not read, bodies without end, thousands of idle connections. After
each the next request is served. Needs no downloads."""

import json
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import serve_load  # noqa: E402
import tiny_gguf  # noqa: E402
from serve_client import CHAT, COMPLETIONS, COPPICE, TEXT, MadeModelTest, Server, chat, complete  # noqa: E402
from serve_load import MIB  # noqa: E402

SESSIONS = "/v1/sessions"
FLAGS = ["--policy", "streaming", "--kv-budget", 32, "--chunk", 16, "--kv-pool", "2MiB"]


def head(path, *lines):
    return "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *lines, "", ""]).encode()


class FaultsTest(MadeModelTest):
    make = staticmethod(lambda path: tiny_gguf.write(path, context=4096))
    flags = [*FLAGS, "--max-body", "1MiB"]

    def setUp(self):
        self.server.answer(CHAT, chat(TEXT, max_tokens=2))
        self.resident = self.server.status_bytes("VmRSS")

    def tearDown(self):
        began = time.time()
        self.server.answer(CHAT, chat(TEXT, max_tokens=2))
        self.assertLess(time.time() - began, 20)
        self.assertTrue(serve_load.settled(self.server))

    def dial(self):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=60)

    def send_until_cut(self, raw, block, count):
        """Bytes that went out before the server ended it."""
        sent = 0
        try:
            for _ in range(count):
                raw.sendall(block)
                sent += len(block)
        except OSError:
            pass
        return sent

    def test_a_body_of_a_gigabyte_is_cut_off_and_not_held(self):
        for lines, wrap in (([f"Content-Length: {10**9}"], False), (["Transfer-Encoding: chunked"], True)):
            with self.dial() as raw:
                raw.sendall(head(CHAT, *lines))
                block = b"a" * MIB
                if wrap:
                    block = f"{MIB:x}\r\n".encode() + block + b"\r\n"
                sent = self.send_until_cut(raw, block, 1000)
            self.assertLess(sent, 400 * MIB)
        if not serve_load.is_sanitized(self.server):
            self.assertLess(self.server.status_bytes("VmRSS") - self.resident, 24 * MIB)

    def test_readers_that_do_not_read_hold_up_nobody(self):
        body = json.dumps(chat(TEXT, max_tokens=1500, ignore_eos=True, stream=True, logprobs=True, top_logprobs=20)).encode()
        slow = []
        for _ in range(6):
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.connect(("127.0.0.1", self.server.port))
            raw.sendall(head(CHAT, f"Content-Length: {len(body)}") + body)
            slow.append(raw)
        self.assertTrue(self.server.wait_until(lambda m: m["coppice_requests_running"] >= 6))
        for i in range(5):
            began = time.time()
            self.server.answer(COMPLETIONS, complete(f"{i} {TEXT}", max_tokens=4))
            self.assertLess(time.time() - began, 20)
        self.assertIn(b"200", slow[0].recv(64))  # it was being answered
        for raw in slow:
            raw.close()

    def test_thousands_of_idle_connections_give_way(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = min(3000, hard - 100)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted + 100), hard))
        idle = []
        try:
            for i in range(wanted):
                raw = socket.create_connection(("127.0.0.1", self.server.port), timeout=30)
                if i % 3 == 0:
                    raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHo")  # half a head
                idle.append(raw)
                if i % 1000 == 999:
                    self.server.answer(CHAT, chat("x", max_tokens=1))
            self.assertLess(len(list(pathlib.Path(f"/proc/{self.server.process.pid}/task").iterdir())), 1100)
        except OSError as error:
            self.assertGreater(len(idle), 1000, error)
        finally:
            for raw in idle:
                raw.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    def test_encodings_that_are_none(self):
        text = json.dumps(chat("äöü"), ensure_ascii=False)
        for data in (text.encode("latin-1"), text.encode("utf-16"), text.encode("utf-32"), b"\xef\xbb\xbf" + text.encode(),
                     text.encode()[:-20], b'{"messages":[{"role":"user","content":"\\ud800"}]}'):
            status, _, reply = self.server.send("POST", CHAT, data)
            self.assertIn(status, (200, 400))
            json.loads(reply)


class FullDiskTest(unittest.TestCase):
    """Sessions on a file system of 96 KiB, in a mount namespace of its own."""

    def test_what_does_not_fit_is_refused_and_what_was_saved_stays_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            model, disk = f"{folder}/tiny.gguf", f"{folder}/disk"
            tiny_gguf.write(model)
            pathlib.Path(disk).mkdir()
            inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c",
                      'mount -t tmpfs -o size=96k none "$0" && exec "$@"', disk]
            if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
                self.skipTest("no mount namespace can be made here (unshare --user --mount)")
            server = Server(model, *FLAGS, "--session-dir", f"{disk}/sessions", program=[*inside, COPPICE])
            try:
                statuses = [server.post(SESSIONS, {"name": f"s{i}", "prompt": f"{i} {TEXT * 3}"})[0] for i in range(12)]
                self.assertEqual(sorted(set(statuses)), [200, 507], statuses)
                listed = [entry["id"] for entry in json.loads(server.send("GET", SESSIONS)[2])["data"]]
                self.assertEqual(listed, sorted(f"s{i}" for i, status in enumerate(statuses) if status == 200))
                for name in listed:
                    server.answer(f"{SESSIONS}/{name}/restore", {})
                server.send("DELETE", f"{SESSIONS}/{listed[0]}")
                self.assertEqual(server.post(SESSIONS, {"name": "again", "prompt": TEXT * 3})[0], 200)
                server.answer(CHAT, chat(TEXT))
            finally:
                self.assertEqual(server.stop(), 0)


class KilledTest(unittest.TestCase):
    def test_a_server_killed_while_it_answers_starts_again_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            model = f"{folder}/tiny.gguf"
            tiny_gguf.write(model)
            first = Server(model, *FLAGS)
            body, ended = chat(TEXT, max_tokens=300, ignore_eos=True), []

            def ask():
                try:
                    ended.append(first.post(CHAT, body)[0])
                except OSError:
                    ended.append(None)

            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            first.wait_until(lambda m: m["coppice_requests_running"] > 0)
            first.stop(signal.SIGKILL)
            for thread in threads:
                thread.join()
            self.assertEqual(len(ended), 4)
            again = Server(model, *FLAGS, port=first.port)
            self.assertEqual(again.port, first.port)
            again.answer(CHAT, chat(TEXT))
            self.assertEqual(again.stop(), 0)


if __name__ == "__main__":
    unittest.main()
