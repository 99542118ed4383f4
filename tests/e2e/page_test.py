#!/usr/bin/env python3
"""The server's page in a real browser, and the extension that feeds it. The browser tests run where Chromium is at
/usr/bin/chromium and the package `playwright` can be imported, and say so where not."""

import base64
import json
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import tiny_gguf  # noqa: E402
from serve_client import CHAT, TEXT, MadeModelTest, add_oracle_packages  # noqa: E402

add_oracle_packages()
CHROMIUM = "/usr/bin/chromium"
try:
    from playwright.sync_api import sync_playwright
except ImportError:
    sync_playwright = None

ROWS = tiny_gguf.LAYERS * tiny_gguf.KV_HEADS
FLAGS = ["--kv-budget", 32, "--chunk", 16, "--kv-pool", "512KiB", "--policy", "streaming"]
BROWSER_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
                 "--disable-component-update", "--disable-sync"]


class Trace(MadeModelTest):
    flags = FLAGS

    def body(self, **more):
        return {"messages": [{"role": "user", "content": TEXT * 2}], "temperature": 0, "max_tokens": 20, "ignore_eos": True, **more}

    def test_views_add_up_to_what_the_cache_holds(self):
        plain = self.server.stream(CHAT, self.body(stream_options={"include_usage": True}))
        events = self.server.stream(CHAT, self.body(stream_options={"include_usage": True}, kv={"trace": True}))
        usage = events[-1]["usage"]
        traces = [event["kv_trace"] for event in events if "kv_trace" in event]
        self.assertTrue(all(event["choices"] == [] for event in events if "kv_trace" in event))
        self.assertFalse(any("kv_trace" in event for event in plain))
        text = [event["choices"][0]["delta"].get("content", "") for event in events if event["choices"]]
        self.assertEqual("".join(text), "".join(e["choices"][0]["delta"].get("content", "") for e in plain if e["choices"]))
        self.assertEqual((traces[0]["layers"], traces[0]["heads"]), (tiny_gguf.LAYERS, tiny_gguf.KV_HEADS))
        self.assertEqual(traces[0]["budget"], 32)
        held, stride = {}, (ROWS + 7) // 8
        for view in traces:
            if "held" not in view:
                continue
            bits = base64.b64decode(view["held"])
            self.assertEqual(len(bits), stride * len(view["at"]))
            held.update({at: bits[i * stride:(i + 1) * stride] for i, at in enumerate(view["at"])})
            last = view
            count = sum(byte.bit_count() for bits in held.values() for byte in bits)
            self.assertEqual(count, view["kept"])
            self.assertEqual(sum(view["rows"]), view["kept"])
        self.assertEqual(last["kept"], usage["kv"]["kept"])
        self.assertEqual(last["evicted"], usage["kv"]["evicted"])
        self.assertTrue(all(held[position] == held[0] for position in range(4)))  # sinks, in every row
        tokens = [token for trace in traces if "tokens" in trace for token in trace["tokens"]]
        self.assertEqual(len(tokens), usage["prompt_tokens"] + usage["completion_tokens"])

    def test_is_refused_where_it_cannot_be(self):
        for more in ({"kv": {"trace": True}}, {"kv": {"trace": True}, "stream": True, "n": 2}, {"kv": {"trace": 1}, "stream": True}):
            status, result = self.server.post(CHAT, self.body(**more))
            self.assertEqual((status, result["error"]["param"]), (400, "kv.trace"))

    def test_a_watcher_that_leaves_frees_its_blocks(self):
        for _ in range(5):
            connection = self.server.connect()
            connection.request("POST", CHAT, json.dumps(self.body(stream=True, max_tokens=300, kv={"trace": True})).encode(),
                               {"Content-Type": "application/json"})
            connection.getresponse().read(200)
            connection.close()
        self.assertTrue(self.server.wait_until(lambda m: m["coppice_requests_running"] == 0))
        self.server.stream(CHAT, self.body(kv={"trace": True}))
        self.assertTrue(self.server.wait_until(lambda m: m["coppice_kv_bytes"] <= m["coppice_kv_bytes_bound"] // 2))

    def test_files_are_served_with_a_policy(self):
        for path in ("/", "/page/app.js", "/page/cache.js", "/page/style.css", "/page/icon.svg"):
            status, headers, data = self.server.send("GET", path)
            self.assertEqual(status, 200, path)
            self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertGreater(len(data), 100)
            self.assertEqual(self.server.send("POST", path, {})[0], 405)
        self.assertEqual(self.server.send("GET", "/page/../service.cpp")[0], 404)


@unittest.skipUnless(sync_playwright and os.path.exists(CHROMIUM), f"needs {CHROMIUM} and the package playwright")
class Browser(MadeModelTest):
    flags = FLAGS

    def setUp(self):
        self.faults = []
        self.playwright = sync_playwright().start()
        self.browser = self.playwright.chromium.launch(executable_path=CHROMIUM, args=BROWSER_FLAGS)

    def tearDown(self):
        self.browser.close()
        self.playwright.stop()
        self.assertEqual(self.faults, [])

    def open(self, width, height, scheme):
        page = self.browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme).new_page()
        page.on("console", lambda message: self.faults.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(self.server.url) else self.faults.append(request.url))
        page.goto(self.server.url + "/")
        page.wait_for_selector("#policy option:nth-child(4)", state="attached")
        return page

    def ask(self, page, text):
        page.fill("#message", text)
        page.press("#message", "Enter")
        page.wait_for_selector("#status:has-text('tokens in')")

    def number(self, page, name):
        return int(page.inner_text(name).replace(",", ""))

    def test_it_streams_shows_the_cache_and_follows_the_budget(self):
        for width, height, scheme in ((1280, 860, "light"), (390, 844, "dark")):
            page = self.open(width, height, scheme)
            page.fill("#length", "12")
            self.ask(page, TEXT * 2)
            self.assertEqual(self.number(page, "#kept"), 32 * ROWS)
            self.assertGreater(self.number(page, "#evicted"), 0)
            cells = page.eval_on_selector_all("#map *", "cells => cells.length")
            self.assertGreaterEqual(cells, ROWS)
            scale = page.inner_text("#legend-high")
            page.click("#clear")
            page.eval_on_selector("#budget", "range => { range.value = 8; range.dispatchEvent(new Event('input', {bubbles: true}));"
                                             " range.dispatchEvent(new Event('change', {bubbles: true})); }")
            self.assertNotEqual(page.inner_text("#budget-now"), "32")
            self.ask(page, TEXT * 2)
            self.assertNotEqual(self.number(page, "#kept"), 32 * ROWS)
            self.assertNotEqual(page.inner_text("#legend-high"), scale)
            self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
            page.click("#tab-board")
            page.wait_for_selector("#tiles > :nth-child(6)")
            self.assertTrue(page.is_hidden("#view-chat"))
            page.close()

    def test_what_a_model_or_user_writes_is_text(self):
        page = self.open(1280, 860, "light")
        page.fill("#length", "4")
        self.ask(page, "<img src=x onerror=alert(1)><b id=bold>x</b>")
        self.assertEqual(page.query_selector("#log img"), None)
        self.assertEqual(page.query_selector("#bold"), None)
        self.assertIn("<img src=x", page.inner_text("#log"))
        page.close()


if __name__ == "__main__":
    unittest.main()
