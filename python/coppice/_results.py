"""What comes back: numbers of a request, scores of a text, entries of a cache."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True)
class TokenUsage:
    prompt: int
    """All tokens before the first generated one, reused ones included."""
    generated: int
    """An end token included."""
    reused: int
    """Of prompt: read by an earlier request of the session."""


@dataclasses.dataclass(frozen=True)
class KvUsage:
    """Entries count all layers and KV heads: one token writes layers x kv_heads of them."""

    policy: str
    budget_entries: int | None
    """None: unbounded."""
    kept_entries: int
    kept_image_entries: int
    evicted_entries: int
    """Since the session began."""
    peak_entries: int
    """Most held at once, a chunk in flight included."""
    bytes_bound: int
    """Of the whole pool: never passed."""
    bytes_peak: int
    """Most bytes of blocks that this session held at once."""


@dataclasses.dataclass(frozen=True)
class TimingUsage:
    load_s: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    evict_share: float
    """Time spent evicting / time of all steps."""


@dataclasses.dataclass(frozen=True)
class Usage:
    """What a request saw, kept, evicted and cost: the same numbers as `coppice run --json` prints."""

    tokens: TokenUsage
    kv: KvUsage
    timing: TimingUsage

    @classmethod
    def from_json(cls, text: str, load_s: float) -> Usage:
        parts = json.loads(text)
        parts["timing"]["load_s"] = load_s

        def take(kind: type, values: dict[str, Any]) -> Any:
            return kind(**{field.name: values[field.name] for field in dataclasses.fields(kind)})

        return cls(take(TokenUsage, parts["tokens"]), take(KvUsage, parts["kv"]), take(TimingUsage, parts["timing"]))

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Scores:
    """Log-probabilities of tokens, natural, from the model's own scores before bias, penalties and temperature."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    """NaN for the first token of a text, which nothing predicts."""
    top: list[list[tuple[int, float]]]
    """For each token the best (id, log-probability), as many as asked for."""

    @property
    def perplexity(self) -> float:
        """exp of the mean of -logprobs, over the tokens that something predicts."""
        known = self.logprobs[~np.isnan(self.logprobs)]
        return float(np.exp(-known.astype(np.float64).mean())) if known.size else float("nan")

    def __len__(self) -> int:
        return len(self.tokens)


class Kept:
    """Which entries a session holds, at the time it was asked. Rows are (layer, KV head).

    positions(layer, head) are those of the tokens in the text, rising; scores(layer, head) what the policy compares,
    higher is kept: NaN with a full budget, and as of the last choice for policies that judge anew before each.
    """

    def __init__(self, layers: int, kv_heads: int, tokens_seen: int, nbytes: int,
                 cu_entries: NDArray[np.int64], positions: NDArray[np.int64], scores: NDArray[np.float32]):
        self.layers, self.kv_heads, self.tokens_seen = layers, kv_heads, tokens_seen
        self.bytes = nbytes  # of the blocks that hold them
        self._cu, self._positions, self._scores = cu_entries, positions, scores

    def _slice(self, layer: int, head: int) -> slice:
        if not (0 <= layer < self.layers and 0 <= head < self.kv_heads):
            raise IndexError(f"layer {layer}, head {head}: there are {self.layers} layers of {self.kv_heads} KV heads")
        row = layer * self.kv_heads + head
        return slice(self._cu[row], self._cu[row + 1])

    def positions(self, layer: int, head: int) -> NDArray[np.int64]:
        return self._positions[self._slice(layer, head)]

    def scores(self, layer: int, head: int) -> NDArray[np.float32]:
        return self._scores[self._slice(layer, head)]

    @property
    def counts(self) -> NDArray[np.int64]:
        """[layers, kv_heads]: entries of each row."""
        return np.diff(self._cu).reshape(self.layers, self.kv_heads)

    @property
    def mask(self) -> NDArray[np.bool_]:
        """[layers, kv_heads, tokens_seen]: whether the token's entry is held."""
        mask = np.zeros((self.layers * self.kv_heads, self.tokens_seen), dtype=bool)
        mask[np.repeat(np.arange(len(mask)), np.diff(self._cu)), self._positions] = True
        return mask.reshape(self.layers, self.kv_heads, self.tokens_seen)

    def __iter__(self) -> Iterator[tuple[int, int, NDArray[np.int64], NDArray[np.float32]]]:
        """(layer, head, positions, scores) of every row."""
        for layer in range(self.layers):
            for head in range(self.kv_heads):
                yield layer, head, self.positions(layer, head), self.scores(layer, head)

    def __len__(self) -> int:
        """Entries of all rows."""
        return len(self._positions)

    def __repr__(self) -> str:
        return f"<{len(self)} entries of {self.tokens_seen} tokens in {self.layers} layers x {self.kv_heads} KV heads>"


@dataclasses.dataclass(frozen=True)
class RowContent:
    """The entries of one layer and KV head, by rising position; arrays are copies."""

    positions: NDArray[np.int64]
    """[L]"""
    keys: NDArray[Any]
    """[L, D], rotated, of the cache's type (float32 where that is bfloat16)."""
    values: NDArray[Any]
    """[L, D], likewise."""
    log_beta: NDArray[np.float32]
    """[L], of the model's gate; 0 where it has none."""

    def torch(self) -> dict[str, Any]:
        """The same as torch tensors, by name, over the same memory."""
        import torch  # only those who ask for it need it

        return {field.name: torch.from_numpy(getattr(self, field.name)) for field in dataclasses.fields(self)}
