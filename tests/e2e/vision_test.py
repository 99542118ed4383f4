#!/usr/bin/env python3
"""Pictures as a user meets them: `coppice run --image` and the server's image_url, on the tiny LLaVA and the
tiny Qwen3-VL of tests/golden/models. Needs no downloads."""

import base64
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serve_client import CHAT, COPPICE, Server  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "tests/golden/models/llava/hf"
PICTURES = ROOT / "tests/golden/pictures"
ROWS, TOKENS = 3 * 2, 16  # of a picture


def uri(data, kind="image/png"):
    return f"data:{kind};base64," + base64.b64encode(data).decode()


def picture(name):
    return (PICTURES / name).read_bytes()


def part(url):
    return {"type": "image_url", "image_url": {"url": url}}


def chat(*parts, **more):
    content = [p if isinstance(p, dict) else {"type": "text", "text": p} for p in parts]
    return {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 10, **more}


class RunTest(unittest.TestCase):
    def call(self, *args, code=0):
        done = subprocess.run([COPPICE, "run", "--model", MODEL, "--weights", "float32", "--temperature", "0", "--max-tokens", "10",
                               *map(str, args)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def json(self, *args):
        return json.loads(self.call("--json", *args).stdout)

    def test_pictures_are_read_and_told_apart(self):
        one = self.json("--image", PICTURES / "photo.png", "What is it?", "--kv-budget", "full")
        self.assertEqual(one["kv"]["kept_image_entries"], TOKENS * ROWS)
        other = self.json("--image", PICTURES / "RGB.jpg", "What is it?", "--kv-budget", "full")
        self.assertNotEqual(one["text"], other["text"])
        two = self.json("--image", PICTURES / "photo.png", "--image", PICTURES / "RGB.jpg", "Both?", "--kv-budget", "full")
        self.assertEqual(two["kv"]["kept_image_entries"], 2 * TOKENS * ROWS)
        small = self.json("--image", PICTURES / "photo.png", "What is it?", "--kv-budget", 8)
        self.assertEqual(small["kv"]["kept_entries"], 8 * ROWS)
        self.assertLess(small["kv"]["kept_image_entries"], 8 * ROWS)
        text = self.json("What is it?")
        self.assertEqual(text["kv"]["kept_image_entries"], 0)
        plain = self.call("--image", PICTURES / "photo.png", "What is it?")
        self.assertIn("of pictures", plain.stderr)

    def test_raw_prompts_place_pictures_themselves(self):
        raw = self.json("--raw", "--image", PICTURES / "photo.png", "USER: <image>\nWhat is it? ASSISTANT:")
        self.assertEqual(raw["kv"]["kept_image_entries"], TOKENS * ROWS)
        self.assertIn("places for pictures", self.call("--raw", "--image", PICTURES / "photo.png", "none", code=1).stderr)

    def test_turns_after_a_picture(self):
        turns = pathlib.Path(os.environ.get("TMPDIR", "/tmp")) / f"turns-{os.getpid()}.txt"
        turns.write_text("What is it?\nAnd what else?\n")
        try:
            done = self.call("--json", "--image", PICTURES / "photo.png", "--turns-file", turns, "--kv-budget", "full")
        finally:
            turns.unlink()
        last = json.loads(done.stdout.splitlines()[-1])
        self.assertEqual(last["kv"]["kept_image_entries"], TOKENS * ROWS)
        self.assertEqual(len(done.stdout.splitlines()), 2)

    def test_what_is_no_picture_is_refused(self):
        self.assertIn("expected PNG, JPEG", self.call("--image", __file__, "x", code=1).stderr)
        self.assertIn("nowhere.png", self.call("--image", "/nowhere.png", "x", code=1).stderr)


class ServeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(MODEL, "--weights", "float32", "--kv-budget", "full", "--chunk", 16, "--kv-pool", "1MiB")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.messages()

    def ask(self, *parts, **more):
        status, _, body = self.server.send("POST", CHAT, chat(*parts, **more))
        self.assertEqual(status, 200, body)
        result = json.loads(body)
        return result["choices"][0]["message"]["content"], result["usage"]

    def refused(self, *parts):
        begin = time.monotonic()
        status, _, body = self.server.send("POST", CHAT, chat(*parts))
        self.assertEqual(status, 400, body)
        self.assertLess(time.monotonic() - begin, 10)
        return json.loads(body)["error"]["message"]

    def test_I12_each_picture_is_answered_as_itself(self):
        a, b = part(uri(picture("photo.png"))), part(uri(picture("RGB.jpg"), "image/jpeg"))
        first, usage = self.ask(a, "What is it?")
        self.assertEqual(usage["kv"]["kept_image_entries"], TOKENS * ROWS)
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)
        second, usage = self.ask(b, "What is it?")
        self.assertEqual(usage["prompt_tokens_details"]["cached_tokens"], 0)
        third, usage = self.ask(a, "What is it?")
        self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0)
        self.assertEqual(first, third)
        self.assertNotEqual(first, second)

    def test_the_program_and_the_server_agree(self):
        answer, _ = self.ask(part(uri(picture("photo.png"))), "What is it?")
        done = subprocess.run([COPPICE, "run", "--model", MODEL, "--weights", "float32", "--temperature", "0", "--max-tokens", "10",
                               "--kv-budget", "full", "--json", "--image", PICTURES / "photo.png", "What is it?"],
                              capture_output=True, text=True, check=True)
        self.assertEqual(json.loads(done.stdout)["text"], answer)

    def test_I08_content_decides_not_the_label(self):
        right, _ = self.ask(part(uri(picture("photo.png"))), "x")
        wrong, _ = self.ask(part(uri(picture("photo.png"), "image/jpeg")), "x")
        self.assertEqual(right, wrong)
        for name in ("lossless.webp", "animated.gif", "RGB.tif", "pixel.png", "long.png"):
            self.ask(part(uri(picture(name))), "x")

    def test_I08_I09_I18_bad_pictures_are_refused_and_the_server_lives(self):
        png = picture("photo.png")
        self.assertIn("expected PNG", self.refused(part(uri(b"hello")), "x"))
        self.assertIn("expected PNG", self.refused(part(uri(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml")), "x"))
        self.assertIn("damaged", self.refused(part(uri(png[:len(png) // 2])), "x"))
        self.assertIn("picture 2", self.refused(part(uri(png)), part(uri(png[:50])), "x"))
        for url in ("file:///etc/passwd", "http://127.0.0.1:1/a.png", "http://169.254.169.254/", "HTTP://[::1]", "x"):
            self.assertIn("fetches nothing", self.refused(part(url), "x"))
        for url in ("data:image/png;base64,hello", "data:image/png;base64,", "data:image/png;base64,aGVs\nbG8="):
            self.assertIn("base64", self.refused(part(url), "x"))
        self.assertIn("at most 32", self.refused(*[part(uri(picture("pixel.png")))] * 33))
        self.assertEqual(self.server.send("GET", "/health")[0], 200)

    def test_I13_a_typed_marker_is_text(self):
        _, usage = self.ask("<image> <image>")
        self.assertEqual(usage["kv"]["kept_image_entries"], 0)
        _, usage = self.ask(part(uri(picture("photo.png"))), "and <image>?")
        self.assertEqual(usage["kv"]["kept_image_entries"], TOKENS * ROWS)


class QwenTest(unittest.TestCase):
    """Pictures of any size: as many tokens as their size asks for, in a grid."""

    MODEL = ROOT / "tests/golden/models/qwen3-vl/hf"
    SIZES = {"photo.png": 15, "RGB.png": 6}  # in tokens

    def call(self, command, *args, code=0):
        model = [self.MODEL] if command == "inspect" else ["--model", self.MODEL, "--weights", "float32"]
        done = subprocess.run([COPPICE, command, *model, *map(str, args)], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def json(self, *args):
        return json.loads(self.call("run", "--json", "--temperature", 0, "--max-tokens", 10, "--kv-budget", "full", *args).stdout)

    def test_pictures_have_tokens_by_size(self):
        for name, tokens in self.SIZES.items():
            one = self.json("--image", PICTURES / name, "What is it?")
            self.assertEqual(one["kv"]["kept_image_entries"], tokens * ROWS)
        both = self.json("--image", PICTURES / "RGB.png", "--image", PICTURES / "photo.png", "What is it?")
        self.assertEqual(both["kv"]["kept_image_entries"], 21 * ROWS)
        small = self.call("run", "--json", "--kv-budget", 8, "--max-tokens", 3, "--image", PICTURES / "photo.png", "x")
        self.assertEqual(json.loads(small.stdout)["kv"]["kept_entries"], 8 * ROWS)

    def test_the_server_answers_alike_over_turns(self):
        server = Server(self.MODEL, "--weights", "float32", "--kv-budget", "full", "--chunk", 16, "--kv-pool", "1MiB")
        try:
            def ask(messages):
                status, _, body = server.send("POST", CHAT, {"messages": messages, "temperature": 0, "max_tokens": 10})
                self.assertEqual(status, 200, body)
                reply = json.loads(body)
                return reply["choices"][0]["message"]["content"], reply["usage"]

            photo, rgb = part(uri(picture("photo.png"))), part(uri(picture("RGB.png")))
            talk = [{"role": "user", "content": [photo, {"type": "text", "text": "What is it?"}]}]
            answer, usage = ask(talk)
            self.assertEqual(usage["kv"]["kept_image_entries"], 15 * ROWS)
            self.assertEqual(answer, self.json("--image", PICTURES / "photo.png", "What is it?")["text"])
            talk += [{"role": "assistant", "content": "A photo."}, {"role": "user", "content": [rgb, {"type": "text", "text": "And this?"}]}]
            later, usage = ask(talk)
            self.assertEqual(usage["kv"]["kept_image_entries"], 21 * ROWS)
            again, usage = ask(talk)
            self.assertGreater(usage["prompt_tokens_details"]["cached_tokens"], 0)
            self.assertEqual(again, later)
            status, _, body = server.send("POST", CHAT, chat(part(uri(picture("long.png"))), "x"))
            self.assertEqual(status, 400, body)
            self.assertIn("longer side", body.decode())
        finally:
            self.assertEqual(server.stop(), 0, server.messages())

    def test_the_plan_counts_the_tower(self):
        plan = json.loads(self.call("plan", "--json").stdout)
        self.assertGreater(plan["bytes"]["vision"], 100_000)
        self.assertIn("qwen3_vl_text", self.call("inspect").stdout)

    def test_the_plan_counts_embeddings_of_several_layers(self):
        with tempfile.TemporaryDirectory() as folder:
            model = shutil.copytree(self.MODEL, pathlib.Path(folder) / "m")
            config = json.loads((model / "config.json").read_text())
            config["vision_config"]["deepstack_visual_indexes"] = []
            (model / "config.json").write_text(json.dumps(config))
            done = subprocess.run([COPPICE, "plan", "--json", "--model", model, "--weights", "float32", "--chunk", "64"],
                                  capture_output=True, text=True, check=True)
        with_them = json.loads(self.call("plan", "--json", "--chunk", 64).stdout)
        more = with_them["bytes"]["scratch"] - json.loads(done.stdout)["bytes"]["scratch"]
        self.assertGreaterEqual(more, 64 * 3 * 32 * 4)  # a chunk of three layers' width in float32

    def test_the_image_processor_may_stand_in_processor_config(self):
        with tempfile.TemporaryDirectory() as folder:
            model = shutil.copytree(self.MODEL, pathlib.Path(folder) / "m")
            processor = json.loads((model / "preprocessor_config.json").read_text())
            (model / "preprocessor_config.json").unlink()
            (model / "processor_config.json").write_text(json.dumps(
                {"image_processor": processor, "processor_class": "Qwen3VLProcessor"}))
            done = subprocess.run([COPPICE, "run", "--model", model, "--weights", "float32", "--json", "--temperature", "0",
                                   "--max-tokens", "10", "--kv-budget", "full", "--image", PICTURES / "photo.png", "What is it?"],
                                  capture_output=True, text=True, check=True)
        self.assertEqual(json.loads(done.stdout)["text"], self.json("--image", PICTURES / "photo.png", "What is it?")["text"])


class TextModelTest(unittest.TestCase):
    def test_a_text_model_says_so(self):
        import tiny_gguf
        with tempfile.TemporaryDirectory() as folder:
            model = str(pathlib.Path(folder) / "tiny.gguf")
            tiny_gguf.write(model)
            server = Server(model, "--kv-pool", "512KiB", "--kv-budget", 32)
            try:
                status, _, body = server.send("POST", CHAT, chat(part(uri(picture("photo.png"))), "x"))
                self.assertEqual(status, 400)
                self.assertIn("reads text alone", body.decode())
            finally:
                server.stop()
            done = subprocess.run([COPPICE, "run", "--model", model, "--image", PICTURES / "photo.png", "x"],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1)
            self.assertIn("reads text alone", done.stderr)


if __name__ == "__main__":
    unittest.main()
