"""OpenVINO GenAI, which reads the GGUF itself. See worker.py.

Options: budget, the entries that its cache eviction keeps; null: all.
"""

import time

import numpy
import openvino
import openvino_genai as genai
from worker import rates, serve


class OpenVino:
    def __init__(self, settings):
        self.settings = settings
        self.budget, self.pipeline = None, None
        self.warm = set()

    def open(self, budget):
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 1  # GB, at most
        scheduler.enable_prefix_caching = False
        if budget:
            scheduler.use_cache_eviction = True
            scheduler.cache_eviction_config = genai.CacheEvictionConfig(
                start_size=32, recent_size=128, max_cache_size=budget, aggregation_mode=genai.AggregationMode.NORM_SUM)
        return genai.LLMPipeline(self.settings["model"], "CPU", scheduler_config=scheduler, PERFORMANCE_HINT="LATENCY",
                                 INFERENCE_NUM_THREADS=self.settings["threads"])

    def run(self, ids, new):
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
        tokens = openvino.Tensor(numpy.array([ids], dtype=numpy.int64))
        mask = openvino.Tensor(numpy.ones((1, len(ids)), dtype=numpy.int64))
        return self.pipeline.generate(genai.TokenizedInputs(tokens, mask), config)

    def speed(self, job):
        ids, new, budget = job["ids"], job["new"], job["options"]["budget"]
        if self.pipeline is None or budget != self.budget:
            self.pipeline = None
            self.pipeline, self.budget = self.open(budget), budget
            self.warm.clear()
        if len(ids) not in self.warm:  # kernels are made for each shape on first use
            self.run(ids[:1024], 4)
            self.warm.add(len(ids))
        metrics = self.run(ids, new + 1).perf_metrics
        return rates(len(ids), metrics.get_ttft().mean / 1e3, 1, metrics.get_tpot().mean / 1e3)

    def first_token(self, job):
        start = time.perf_counter()
        self.pipeline = self.open(job["options"]["budget"])
        ids = self.pipeline.get_tokenizer().encode(job["text"], add_special_tokens=False).input_ids.data[0]
        self.run(ids.tolist(), 1)
        return {"first_token_s": time.perf_counter() - start}


serve(OpenVino)
