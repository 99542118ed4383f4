"""llama.cpp through llama-cpp-python. Options: flash (attention), true or false. See worker.py."""

import time

from llama_cpp import Llama
from worker import rates, serve


class LlamaCpp:
    def __init__(self, settings):
        self.settings = settings
        self.key, self.llm = None, None

    def open(self, context, flash):
        threads = self.settings["threads"]
        return Llama(self.settings["model"], n_ctx=context, n_threads=threads, n_threads_batch=threads, n_batch=512,
                     flash_attn=flash, verbose=False)

    def prepare(self, context, flash):
        if self.key != (context, flash):
            self.llm = None
            self.llm = self.open(context, flash)
            self.key = (context, flash)
        self.llm.reset()
        self.llm.eval([1] * 8)  # first use allocates
        self.llm.eval([self.llm.sample(temp=0.0)])
        self.llm.reset()

    def speed(self, job):
        ids, new = job["ids"], job["new"]
        self.prepare(len(ids) + new + 16, job["options"]["flash"])
        start = time.perf_counter()
        self.llm.eval(ids)
        read = time.perf_counter()
        for _ in range(new):
            self.llm.eval([self.llm.sample(temp=0.0)])
        return rates(len(ids), read - start, new, time.perf_counter() - read)

    def first_token(self, job):
        start = time.perf_counter()
        llm = self.open(512, job["options"]["flash"])
        llm.eval(llm.tokenize(job["text"].encode(), add_bos=False))
        llm.detokenize([llm.sample(temp=0.0)])
        return {"first_token_s": time.perf_counter() - start}


serve(LlamaCpp)
