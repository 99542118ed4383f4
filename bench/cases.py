"""What is measured: which work, by which engines, how often; and what was promised of it."""

import dataclasses

OURS = "coppice"
LLAMA = ("llama.cpp", "llama.cpp flash")
TRANSFORMERS = ("transformers sdpa", "transformers eager")
OPENVINO = ("openvino genai",)
# name -> program of rivals/, options
RIVALS = {
    "llama.cpp": ("rival_llama.py", {"flash": False}),
    "llama.cpp flash": ("rival_llama.py", {"flash": True}),
    "transformers sdpa": ("rival_transformers.py", {"attention": "sdpa"}),
    "transformers eager": ("rival_transformers.py", {"attention": "eager"}),
    "openvino genai": ("rival_openvino.py", {"budget": None}),
}


@dataclasses.dataclass
class Case:
    name: str
    what: str
    prompt: int
    new: int = 64
    ours: dict = dataclasses.field(default_factory=lambda: {"--kv-budget": "full"})  # flags
    rival_options: dict = dataclasses.field(default_factory=dict)  # program -> options beside its own
    rivals: tuple = ()
    repeats: int = 5
    sequences: int = 1
    busy: bool = False  # another process computes on one core meanwhile
    first_token: bool = False
    once: tuple = ()  # engines too slow for more than one run, of 8 new tokens


def bounded(entries, **more):
    return {"--kv-budget": str(entries), **more}


def smollm2_cases(quick):
    """The cases of the default model, in order."""
    repeats, every = (3, LLAMA) if quick else (7, LLAMA + TRANSFORMERS + OPENVINO)
    long = 2048 if quick else 6000
    cases = [
        Case("512", "context 512, full cache for all", 512, rivals=every, repeats=repeats),
        Case("2048" if quick else "long", f"context {long}, coppice and OpenVINO at budget 512", long, new=32,
             ours=bounded(512), rivals=every, rival_options={"rival_openvino.py": {"budget": 512}},
             repeats=1 if quick else 3, once=TRANSFORMERS),
        Case("first token", "30-token prompt, from a cold start", 30, ours=bounded(1024), rivals=every,
             repeats=repeats, first_token=True),
        Case("1 of 128", "context 128, full cache", 128, repeats=2 if quick else 5),
        Case("8 of 128", "8 sequences at once, context 128, full cache", 128, sequences=8, repeats=2 if quick else 5),
        Case("8 of 512", "8 sequences at once, context 512, full cache", 512, sequences=8, repeats=2 if quick else 5),
        Case("busy", "context 512, one core kept busy by another process", 512, new=16, busy=True,
             rivals=LLAMA[1:] if quick else LLAMA, repeats=2 if quick else 5),
        # Both attend over 512 entries per head in the mean; only the first evicts, one token's entries a step.
        Case("evicting", "512 entries per head, evicting in every step", 1024, ours=bounded(512), repeats=repeats),
        Case("not evicting", "512 entries per head, no gate, no eviction", 480,
             ours={"--kv-budget": "full", "--gate": "none"}, repeats=repeats),
    ]
    return cases


def qwen_cases():
    return [
        Case("qwen 512", "Qwen2.5-Coder-0.5B: context 512, full cache for both", 512, rivals=LLAMA, repeats=3),
        Case("qwen 8000", "Qwen2.5-Coder-0.5B: context 8,000, coppice at budget 512", 8000,
             ours=bounded(512, **{"--policy": "streaming"}), rivals=LLAMA, repeats=1, new=32),
    ]


@dataclasses.dataclass
class Goal:
    """A promised figure: `value` of the medians is at least (or at most) `bound`."""

    what: str
    bound: float
    value: object  # function of a Medians
    at_most: bool = False

    def reached(self, value):
        return value <= self.bound if self.at_most else value >= self.bound


def over_llama(case, key):
    return lambda medians: medians.ratio(case, key, LLAMA)


def ours(case, key):
    return lambda medians: medians.value(case, OURS, key)


def decode(medians, case):
    return medians.value(case, OURS, "decode_tokens_per_s")


GOALS = [
    Goal("decode at context 512 / llama.cpp", 2.0, over_llama("512", "decode_tokens_per_s")),
    Goal("decode at the long context, budget 512 / llama.cpp", 5.0, over_llama("long", "decode_tokens_per_s")),
    Goal("prefill 512 / llama.cpp", 3.0, over_llama("512", "prefill_tokens_per_s")),
    Goal("prefill of the long context, budget 512 / llama.cpp", 5.0, over_llama("long", "prefill_tokens_per_s")),
    Goal("time to first token, cold: llama.cpp / ours", 1.0, over_llama("first token", "first_token_s")),
    Goal("share of the memory limit, decode at context 512", 0.60, ours("512", "limit_share")),
    Goal("share of eviction in a decode step, as timed", 0.05, ours("evicting", "evict_share"), at_most=True),
    Goal("what eviction and gate cost of a decode step", 0.05,
         lambda m: 1 - decode(m, "evicting") / decode(m, "not evicting"), at_most=True),
    Goal("one core busy: decode / quiet", 0.45,
         lambda m: decode(m, "busy") / decode(m, "512")),
    Goal("8 sequences of 128: total decode / one sequence", 3.0,
         lambda m: decode(m, "8 of 128") / decode(m, "1 of 128")),
    Goal("8 sequences of 512: total decode / one sequence", 3.0,
         lambda m: decode(m, "8 of 512") / decode(m, "512")),
    Goal("Qwen2.5-Coder decode at 512 / llama.cpp", 1.3, over_llama("qwen 512", "decode_tokens_per_s")),
    Goal("Qwen2.5-Coder decode at 8,000, budget 512 / llama.cpp", 3.0, over_llama("qwen 8000", "decode_tokens_per_s")),
]
