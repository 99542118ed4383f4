"""The native part, as python/native/module.cpp defines it. Internal: use the package's own names."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

version: str

class Error(Exception):
    code: str

class ModelOptions:
    model: str
    gate: str
    policy: str
    budget: str
    sinks: int | None
    recent: int | None
    floor: int | None
    lookahead: int
    policy_options: dict[str, str]
    chunk: int
    positions: str
    weights: str
    kv_dtype: str
    threads: int
    def __init__(self) -> None: ...
    def copy(self) -> ModelOptions: ...
    def set_python_policy(
        self, traits: PolicyTraits, score: Callable[[int, int, int, dict[str, Any]], Any]
    ) -> None: ...
    def set_no_python_policy(self) -> None: ...

class SamplingParams:
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: dict[int, float]
    seed: int | None
    max_tokens: int | None
    stop: list[str]
    stop_token_ids: list[int]
    ignore_eos: bool
    logprobs: int | None
    def __init__(self) -> None: ...

class PolicyNeeds:
    keys: bool
    values: bool
    queries: bool
    attention: bool
    log_beta: bool
    def __init__(self) -> None: ...

class PolicyTraits:
    name: str
    scope: str
    sinks: int
    recent: int
    floor: int
    window: int
    needs: PolicyNeeds
    def __init__(self) -> None: ...

def policies() -> dict[str, str]: ...

class Model:
    def __init__(self, options: ModelOptions) -> None: ...
    def encode(self, text: str, special: bool, begin: bool) -> NDArray[np.int32]: ...
    def decode(self, ids: NDArray[np.int64]) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def load_seconds(self) -> float: ...
    @property
    def gate_kind(self) -> str: ...
    @property
    def end_token_ids(self) -> list[int]: ...
    @property
    def has_chat_template(self) -> bool: ...
    @property
    def sizes(self) -> dict[str, Any]: ...

_Sampled = tuple[NDArray[np.int32], NDArray[np.float32], list[list[tuple[int, float]]]]

class Output:
    text: str
    @property
    def tokens(self) -> _Sampled: ...
    @property
    def prompt_scores(self) -> _Sampled: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def usage(self) -> str: ...

class Session:
    def __init__(self, model: Model, cache: ModelOptions, tokens: int | None, sequences: int) -> None: ...
    @staticmethod
    def chat(
        model: Model, cache: ModelOptions, tokens: int | None, system: str, keep_system: bool, think: bool | None
    ) -> Session: ...
    def start(
        self, ids: NDArray[np.int64], sampling: SamplingParams, score_prompt: bool, images: list[str]
    ) -> None: ...
    def start_turn(self, user: str, sampling: SamplingParams, images: list[str]) -> None: ...
    def next(self) -> Output | None: ...
    def stop(self) -> None: ...
    @property
    def running(self) -> bool: ...
    def fork(self) -> Session: ...
    def tokens(self) -> NDArray[np.int32]: ...
    def kept(self) -> tuple[int, int, int, int, NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]: ...
    def row(self, layer: int, head: int) -> tuple[NDArray[np.int64], Any, Any, NDArray[np.float32]]: ...
    def messages(self) -> str: ...
    def eviction(self) -> dict[str, Any]: ...
