"""transformers in bfloat16, the GGUF dequantised once into a folder. See worker.py.

Options: attention, sdpa or eager.
"""

import inspect
import os
import time

os.environ["HF_HUB_OFFLINE"] = "1"
# pylint: disable=wrong-import-position
import torch
import transformers
from gguf_folder import bfloat16_folder
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from worker import rates, serve

transformers.logging.set_verbosity_error()


class Transformers:
    def __init__(self, settings):
        torch.set_num_threads(settings["threads"])
        self.folder = bfloat16_folder(settings["model"], settings["folder"])
        self.model = None

    def open(self, attention):
        return AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.bfloat16,
                                                    attn_implementation=attention).eval()

    @staticmethod
    def pass_on(model, ids, cache):
        """Reads ids, returns the best next token as [1, 1]."""
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        logits = model(ids, use_cache=True, logits_to_keep=1, **{name: cache}).logits
        return logits[:, -1:].argmax(-1)

    @torch.inference_mode()
    def speed(self, job):
        if self.model is None:
            self.model = self.open(job["options"]["attention"])
        self.model.set_attn_implementation(job["options"]["attention"])
        ids = torch.tensor([job["ids"]])
        cache = DynamicCache(config=self.model.config)  # of a short run first: what is set up on first use
        self.pass_on(self.model, self.pass_on(self.model, ids[:, :64], cache), cache)
        cache = DynamicCache(config=self.model.config)
        start = time.perf_counter()
        token = self.pass_on(self.model, ids, cache)
        read = time.perf_counter()
        for _ in range(job["new"]):
            token = self.pass_on(self.model, token, cache)
        token.item()
        return rates(ids.shape[1], read - start, job["new"], time.perf_counter() - read)

    @torch.inference_mode()
    def first_token(self, job):
        start = time.perf_counter()
        model = self.open(job["options"]["attention"])
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        ids = tokenizer(job["text"], return_tensors="pt", add_special_tokens=False).input_ids
        tokenizer.decode(self.pass_on(model, ids, DynamicCache(config=model.config))[0])
        return {"first_token_s": time.perf_counter() - start}


serve(Transformers)
