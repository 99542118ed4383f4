"""Load on a server and what is seen of it from outside its process: for tests and for bench/."""

import pathlib
import random
import threading
from concurrent.futures import ThreadPoolExecutor

from serve_client import COMPLETIONS, TEXT

MIB = 1 << 20


class Watch(threading.Thread):
    """Reads the metrics and the resident memory of a server over and over, until closed.

    `kv_peak`, `resident_peak`: most bytes seen, the latter as the kernel counts it. `passed`: readings of a cache above its bound."""

    def __init__(self, server, seconds=0.02):
        super().__init__(daemon=True)
        self.server, self.seconds, self.ended = server, seconds, threading.Event()
        self.readings, self.kv_peak, self.resident_peak, self.passed = 0, 0, server.status_bytes("VmRSS"), []
        self.start()

    def run(self):
        while not self.ended.wait(self.seconds):
            metrics = self.server.metrics()
            self.readings += 1
            self.kv_peak = max(self.kv_peak, metrics["coppice_kv_bytes"])
            if max(metrics["coppice_kv_bytes"], metrics["coppice_kv_bytes_peak"]) > metrics["coppice_kv_bytes_bound"]:
                self.passed.append(metrics)
            self.resident_peak = max(self.resident_peak, self.server.status_bytes("VmRSS"))

    def close(self):
        self.ended.set()
        self.join()
        self.resident_peak = max(self.resident_peak, self.server.status_bytes("VmHWM"))
        return self


def words(count, seed):
    """Text of that many words, drawn by `seed`."""
    draw = random.Random(seed)
    return " ".join(draw.choice(TEXT.split()) for _ in range(count))


def growing_prompts(server, count, shortest, longest):
    """`count` lists of tokens, each longer than the one before, no two alike at the start."""
    text = words(2 * longest, count)
    ids = server.answer("/tokenize", {"prompt": text})["tokens"]
    while len(ids) < longest + count:
        ids += ids
    sizes = [shortest + (longest - shortest) * i // (count - 1) for i in range(count)]
    return [ids[i:i + size] for i, size in enumerate(sizes)]


def run_growing(server, prompts, at_once, new_tokens):
    """Answers all prompts, `at_once` of them at a time, under watch. (Watch, answers)."""
    def ask(prompt):
        return server.answer(COMPLETIONS, {"prompt": prompt, "max_tokens": new_tokens, "temperature": 0, "ignore_eos": True})

    watch = Watch(server)
    try:
        with ThreadPoolExecutor(at_once) as pool:
            answers = list(pool.map(ask, prompts))
    finally:
        watch.close()
    return watch, answers


def settled(server, seconds=20):
    """Whether only snapshots hold blocks, after some time."""
    return server.wait_until(
        lambda m: m["coppice_requests_running"] == 0 and m["coppice_requests_waiting"] == 0
        and m["coppice_kv_bytes"] == m["coppice_snapshot_bytes"], seconds)


def is_sanitized(server):
    """Under sanitizers resident memory says nothing of the program's own."""
    maps = pathlib.Path(f"/proc/{server.process.pid}/maps").read_text(encoding="utf-8")
    return "libasan" in maps or "libubsan" in maps
