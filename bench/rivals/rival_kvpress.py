"""kvpress on transformers, the GGUF dequantised once into a folder, in the steps of kvpress' own pipeline: the context
is read under a press, then each question goes on from the compressed cache. See worker.py.

Jobs: evaluate, {"documents": [{"context", "continuation", "questions"}], "press", "budget", "new", "dtype"}.
"""

import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"
# pylint: disable=wrong-import-position
import kvpress
import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache
from worker import serve

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
SNAP = {"window_size": 32, "kernel_size": 5}


def make_press(name, length, budget):
    """The press that keeps `budget` of `length` entries; None: all."""
    ratio = 1 - (budget + 0.5) / length
    made = {
        "streaming": lambda: kvpress.StreamingLLMPress(compression_ratio=ratio),
        "knorm": lambda: kvpress.KnormPress(compression_ratio=ratio),
        "keydiff": lambda: kvpress.KeyDiffPress(compression_ratio=ratio),
        "tova": lambda: kvpress.TOVAPress(compression_ratio=ratio),
        "snapkv": lambda: kvpress.SnapKVPress(compression_ratio=ratio, **SNAP),
        "expected-attention": lambda: kvpress.ExpectedAttentionPress(compression_ratio=ratio),
        "adakv": lambda: kvpress.AdaKVPress(kvpress.SnapKVPress(compression_ratio=ratio, **SNAP)),
        "full": lambda: None,
    }
    return made[name]()


class Kvpress:
    def __init__(self, settings):
        torch.set_num_threads(settings["threads"])
        self.folder = settings["folder"]
        self.models = {}

    def model(self, dtype):
        if dtype not in self.models:
            self.models = {dtype: AutoModelForCausalLM.from_pretrained(self.folder, dtype=getattr(torch, dtype),
                                                                       attn_implementation="sdpa").eval()}
        return self.models[dtype]

    @staticmethod
    def bytes_of(cache):
        return sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))

    @torch.inference_mode()
    def document(self, model, job, document):
        """(bytes held once compressed, log-probabilities of the continuation, answers)."""
        context = torch.tensor([document["context"]])
        length = context.shape[1]
        press = make_press(job["press"], length, job["budget"])
        cache = DynamicCache(config=model.config)
        if press is None:
            model.model(context, past_key_values=cache)
        else:
            with press(model):
                model.model(context, past_key_values=cache)
        held = self.bytes_of(cache)
        lengths = [layer.get_seq_length() for layer in cache.layers]

        def go_on(ids, first):
            positions = torch.arange(length + first, length + first + ids.shape[1])[None]
            return model(ids, past_key_values=cache, position_ids=positions).logits[0]

        def take_back():
            for layer, kept in zip(cache.layers, lengths, strict=True):
                layer.keys, layer.values = layer.keys[:, :, :kept], layer.values[:, :, :kept]

        ids = torch.tensor([document["continuation"]])
        scores = go_on(ids, 0)[:-1].float().log_softmax(-1).gather(1, ids[0, 1:, None]).mean().item()
        take_back()
        answers = []
        for question in document["questions"]:
            token = go_on(torch.tensor([question]), 0)[-1:].argmax(-1)[None]
            answer = [token.item()]
            for i in range(job["new"] - 1):
                token = go_on(token, len(question) + i)[-1:].argmax(-1)[None]
                answer.append(token.item())
            answers.append(answer)
            take_back()
        return held, scores, answers

    def evaluate(self, job):
        model = self.model(job["dtype"])
        start = time.perf_counter()
        results = [self.document(model, job, document) for document in job["documents"]]
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "kv_bytes": max(r[0] for r in results), "logprobs": [r[1] for r in results],
                "answers": [r[2] for r in results]}


serve(Kvpress)
