#!/usr/bin/env python3
"""The server as OpenAI's own client meets it, on a tiny model; where the package `openai` can be imported."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from serve_client import TEXT, MadeModelTest, add_oracle_packages  # noqa: E402

add_oracle_packages()
try:
    import openai
except ImportError:
    openai = None


@unittest.skipIf(openai is None, "the package openai is not installed: scripts/setup oracle installs it")
class OpenaiClientTest(MadeModelTest):
    flags = ["--kv-budget", 32, "--chunk", 16, "--kv-pool", "512KiB", "--max-running", 8, "--api-key", "k"]

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="k", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        super().tearDownClass()

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["tiny"])
        self.assertEqual(self.client.models.retrieve("tiny").id, "tiny")

    def test_chat(self):
        ask = {"model": "tiny", "messages": [{"role": "user", "content": TEXT}], "temperature": 0, "max_tokens": 12}
        whole = self.client.chat.completions.create(**ask, logprobs=True, top_logprobs=2, extra_body={"kv": {"budget": 24}})
        self.assertEqual(whole.usage.model_dump()["kv"]["budget"], 24)
        self.assertEqual(len(whole.choices[0].logprobs.content[0].top_logprobs), 2)
        text, usage = "", None
        with self.client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True},
                                                 extra_body={"kv": {"budget": 24}}) as stream:
            for chunk in stream:
                text += chunk.choices[0].delta.content or "" if chunk.choices else ""
                usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, whole.usage.completion_tokens)

    def test_completions(self):
        ask = {"model": "tiny", "temperature": 0, "max_tokens": 8}
        result = self.client.completions.create(prompt=[TEXT, "the"], echo=True, n=2, **ask)
        self.assertEqual(len(result.choices), 4)
        self.assertTrue(result.choices[0].text.startswith(TEXT))
        scored = self.client.completions.create(prompt=[1, 2, 3], logprobs=2, **ask)
        self.assertEqual(len(scored.choices[0].logprobs.tokens), len(scored.choices[0].logprobs.token_logprobs))
        streamed = self.client.completions.create(prompt=TEXT, stream=True, **ask)
        self.assertEqual(TEXT + "".join(chunk.choices[0].text for chunk in streamed), result.choices[0].text)

    def test_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.chat.completions.create(model="tiny", messages=[], max_tokens=1)
        self.assertEqual(caught.exception.param, "messages")
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
        with self.assertRaises(openai.AuthenticationError):
            self.client.with_options(api_key="x").models.list()


if __name__ == "__main__":
    unittest.main()
