"""Many short requests with shared beginnings, some given up on the way; every answer is known from a run of its own."""

import json
import pathlib
import random
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from serve_client import CHAT, COMPLETIONS
from serve_load import settled, words


def make_bodies(count, seed, prefix_words=40, new_tokens=12):
    """(path, body) pairs: chats and completions that share beginnings, greedy and sampled, of several lengths."""
    draw = random.Random(seed)
    prefixes = [words(draw.randrange(prefix_words // 4, prefix_words), 1000 * seed + i) for i in range(max(4, count // 12))]
    bodies = []
    for i in range(count):
        text = f"{draw.choice(prefixes)} {words(draw.randrange(1, 12), seed + i)}"
        body = {"max_tokens": draw.randrange(1, new_tokens + 1), "ignore_eos": draw.random() < 0.5}
        body |= {"temperature": 0} if i % 2 else {"temperature": 1.2, "seed": draw.randrange(1 << 30), "top_p": 0.95}
        if i % 3:
            bodies.append((CHAT, {**body, "messages": [{"role": "user", "content": text}]}))
        else:
            bodies.append((COMPLETIONS, {**body, "prompt": text}))
    return bodies


def text_of(choice):
    part = choice.get("message") or choice.get("delta")
    return choice.get("text", "") if part is None else part.get("content") or ""


def alone(server, bodies):
    """What each body answers when nothing else runs."""
    return [text_of(server.answer(path, body)["choices"][0]) for path, body in bodies]


class Soak:
    """`run` sends requests; what went wrong is in `faults`, what happened in `counts`."""

    def __init__(self, server, bodies, answers, seed=1, cancelled=0.25):
        self.server, self.bodies, self.answers = server, bodies, answers
        self.seed, self.cancelled = seed, cancelled
        self.lock = threading.Lock()
        self.counts = {"whole": 0, "streamed": 0, "left": 0, "refused": 0}
        self.faults, self.reused = [], 0

    def count(self, what, reused=0):
        with self.lock:
            self.counts[what] += 1
            self.reused += reused

    def fault(self, i, what, got):
        with self.lock:
            self.faults.append({"request": i, "what": what, "got": got, "expected": self.answers[i % len(self.bodies)]})

    def one(self, i):
        draw = random.Random(self.seed * 1_000_003 + i)
        path, body = self.bodies[i % len(self.bodies)]
        try:
            if draw.random() < self.cancelled:
                self.leave(i, path, body, draw)
            elif draw.random() < 0.5:
                self.whole(i, path, body)
            else:
                self.stream(i, path, body, None)
        except Exception as error:  # pylint: disable=broad-exception-caught
            self.fault(i, "error", repr(error))

    def whole(self, i, path, body):
        status, result = self.server.post(path, body)
        if status == 429:
            return self.count("refused")
        if status != 200:
            return self.fault(i, "status", f"{status}: {result}")
        text = text_of(result["choices"][0])
        if text != self.answers[i % len(self.bodies)]:
            self.fault(i, "whole", text)
        return self.count("whole", result["usage"]["kv"]["reused"])

    def stream(self, i, path, body, events_wanted):
        """Reads a stream, or the first `events_wanted` events of it and leaves."""
        connection = self.server.connect()
        try:
            data = json.dumps({**body, "stream": True}).encode()
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status == 429:
                return self.count("refused")
            text, events, done = "", 0, False
            while not done and (events_wanted is None or events < events_wanted):
                line = response.readline().decode()
                if not line:
                    return self.fault(i, "cut", text)
                if line.startswith("data: "):
                    events += 1
                    done = line.startswith("data: [DONE]")
                    if not done:
                        text += "".join(text_of(choice) for choice in json.loads(line[6:])["choices"])
        finally:
            connection.close()
        expected = self.answers[i % len(self.bodies)]
        if (text != expected) if done else not expected.startswith(text):
            self.fault(i, "stream", text)
        return self.count("streamed" if done else "left")

    def leave(self, i, path, body, draw):
        """Goes before the answer: while it comes, while the request waits or runs, or in the middle of the request."""
        if draw.random() < 0.4:
            return self.stream(i, path, body, draw.randrange(1, 4))
        data = json.dumps({**body, "stream": draw.random() < 0.5}).encode()
        head = (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\n\r\n").encode()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=60) as raw:
            raw.sendall((head + data)[:draw.randrange(1, len(head + data)) if draw.random() < 0.2 else None])
            time.sleep(draw.random() * 0.03)
        return self.count("left")

    def run(self, begin, end, at_once):
        """Requests begin .. end."""
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(self.one, range(begin, end)))
        return self


def state(server):
    """What a server holds when nothing runs: a leak shows as growth."""
    settled(server, 60)
    metrics = server.metrics()
    folder = pathlib.Path(f"/proc/{server.process.pid}")
    blocks = metrics["coppice_kv_blocks_free"]
    block = (metrics["coppice_kv_bytes_bound"] - metrics["coppice_kv_bytes"]) / blocks
    return {"resident": server.status_bytes("VmRSS"), "pool": round(blocks * block + metrics["coppice_snapshot_bytes"]),
            "files": len(list((folder / "fd").iterdir())), "threads": len(list((folder / "task").iterdir()))}
