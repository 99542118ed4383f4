#!/usr/bin/env python3
"""A made model under load, seen from outside the process: memory stays in its bound, answers are those of a quiet
server, nothing leaks. bench/serve_memory.py and bench/serve_soak.py do the same at full size. Needs no downloads."""

import functools
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import serve_load  # noqa: E402
import tiny_gguf  # noqa: E402
from serve_client import COPPICE, MadeModelTest, Server  # noqa: E402
from serve_load import MIB  # noqa: E402
from serve_soak import Soak, alone, make_bodies, state  # noqa: E402

POOL, RUNNING = "4MiB", 16


class Memory(MadeModelTest):
    """Requests of growing length under a full cache: together they want many times the pool."""

    make, name = functools.partial(tiny_gguf.write, context=4096), "long"
    flags = ["--policy", "streaming", "--kv-budget", "full", "--chunk", 64, "--kv-pool", POOL, "--max-running", RUNNING,
             "--tokens-between", 512]  # the pool fills

    def test_K13_cache_and_process_stay_within_bound_and_plan(self):
        for reuse in ("off", "1MiB"):
            with self.subTest(reuse=reuse):
                server = Server(self.model, *self.flags, "--kv-reuse", reuse)
                try:
                    self.check(server)
                finally:
                    self.assertEqual(server.stop(), 0)

    def check(self, server):
        free = server.metrics()["coppice_kv_blocks_free"]
        prompts = serve_load.growing_prompts(server, 50, 20, 1500)
        watch, answers = serve_load.run_growing(server, prompts, 16, 8)
        self.assertEqual([answer["usage"]["prompt_tokens"] for answer in answers], [len(prompt) for prompt in prompts])
        self.assertEqual(watch.passed, [])
        self.assertGreater(watch.readings, 5)
        self.assertTrue(serve_load.settled(server))
        metrics = server.metrics()
        self.assertGreater(metrics["coppice_kv_bytes_peak"], metrics["coppice_kv_bytes_bound"] / 2)  # it was needed
        held = metrics["coppice_snapshot_bytes"] * free / metrics["coppice_kv_bytes_bound"]
        self.assertAlmostEqual(metrics["coppice_kv_blocks_free"] + held, free, delta=0.5)
        if serve_load.is_sanitized(server):
            return
        done = subprocess.run([COPPICE, "plan", "--model", self.model, "--json", "--kv-budget", "full", "--chunk", "64",
                               "--kv-pool", POOL, "--max-running", str(RUNNING)], capture_output=True, text=True, check=True)
        planned = json.loads(done.stdout)["bytes"]
        self.assertEqual(planned["kv"], 4 * MIB)
        self.assertLessEqual(watch.resident_peak, planned["total"])


class SoakTest(unittest.TestCase):
    def test_answers_under_load_are_those_of_a_quiet_server(self):
        flags = ["--policy", "streaming", "--kv-budget", 48, "--chunk", 16, "--kv-pool", "4MiB", "--max-running", 12,
                 "--max-requests", 64]
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "tiny.gguf"
            tiny_gguf.write(model)
            bodies = make_bodies(40, 3, new_tokens=40)
            quiet, server = Server(model, *flags, "--kv-reuse", "off"), Server(model, *flags)
            try:
                soak = Soak(server, bodies, alone(quiet, bodies))
                soak.run(0, 100, 16)
                before = state(server)
                soak.run(100, 400, 16)
                after = state(server)
                self.assertEqual(soak.faults, [])
                self.assertEqual(sum(soak.counts.values()), 400)
                self.assertGreater(min(soak.counts[what] for what in ("whole", "streamed", "left")), 40)
                self.assertGreater(soak.reused, 0)
                self.assertEqual(after["pool"], before["pool"])
                for key in ("files", "threads"):  # a connection or two may still be closing
                    self.assertLess(after[key] - before[key], 8, key)
                if not serve_load.is_sanitized(server):
                    self.assertLess(after["resident"] - before["resident"], 4 * MIB)
                self.assertEqual(server.metrics()["coppice_requests_failed_total"], 0)
            finally:
                self.assertEqual([quiet.stop(), server.stop()], [0, 0])


if __name__ == "__main__":
    unittest.main()
