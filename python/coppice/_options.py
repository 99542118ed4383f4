"""What can be set of a cache and of a generation: one name means one thing everywhere, as on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypedDict

from coppice import _native

if TYPE_CHECKING:
    from coppice._policy import Policy


class CacheOptions(TypedDict, total=False):
    """How keys and values are kept. What is not named stays as it was."""

    policy: str | Policy | None
    """A name of policies(), or one's own; None: dbtrimkv where the model has a gate, else streaming."""
    budget: int | str
    """512 (entries per KV head, in the mean), "64MiB" (bytes in all), "12.5%" (of the text), "full"."""
    sinks: int | None
    """First tokens that are never evicted; None: the policy's own number."""
    recent: int | None
    """Newest tokens that are never evicted; None: the policy's own number."""
    floor: int | None
    """Entries that every head keeps; None: the policy's own number."""
    lookahead: int
    """Steps ahead that a gated score looks."""
    policy_options: Mapping[str, str | int | float]
    """The policy's own settings, such as {"window": 16}."""
    chunk: int
    """Tokens read per pass, with eviction after each."""
    positions: Literal["original", "compact"]
    """compact: keys are renumbered where the trained range ends, for endless streams."""
    kv_dtype: Literal["float16", "bfloat16", "float32"]
    """The type of cached keys and values."""


class Sampling(TypedDict, total=False):
    """How tokens are drawn and when a text ends. Without any of it: greedy, to the model's own end."""

    max_tokens: int | None
    """New tokens at most; None: as many as fit."""
    temperature: float
    """0 is greedy."""
    top_k: int
    """0 is off."""
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    """By token id."""
    seed: int | None
    """Makes sampling reproducible; None: a new one each time."""
    stop: str | Sequence[str]
    """Texts that end the answer before themselves."""
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    """The model's own end tokens do not end the text."""
    logprobs: int | None
    """Log-probabilities of the tokens, and so many alternatives for each."""


_CHOICES = {
    "positions": ("original", "compact"),
    "kv_dtype": ("float16", "bfloat16", "float32"),
    "weights": ("packed", "float32"),
}


def _known(name, kind):
    if name not in kind.__annotations__:
        known = ", ".join(kind.__annotations__)
        raise TypeError(f"{name!r} is no setting; expected one of {known}")


def set_cache(native: _native.ModelOptions, options: CacheOptions) -> None:
    """Writes what is named into `native`."""
    for name in sorted(options, key=lambda name: name != "policy"):  # which takes options of another one back
        value = options[name]
        _known(name, CacheOptions)
        if name == "policy":
            _set_policy(native, value)
        elif name == "budget":
            native.budget = str(value)
        elif name == "policy_options":
            native.policy_options = {key: str(item) for key, item in value.items()}
        else:
            set_plain(native, name, value)


def set_plain(native: _native.ModelOptions, name: str, value: object) -> None:
    """One setting that is taken as it is, after a look at the words allowed."""
    allowed = _CHOICES.get(name)
    if allowed is not None and value not in allowed:
        raise ValueError(f"{name} must be {' or '.join(allowed)}, got {value!r}")
    try:
        setattr(native, name, value)
    except TypeError:
        raise TypeError(f"{name}: {value!r} is of type {type(value).__name__}, which does not fit") from None


def _set_policy(native, value):
    native.set_no_python_policy()
    native.policy = ""
    native.policy_options = {}
    if value is None:
        return
    if isinstance(value, str):
        native.policy = value
        return
    from coppice._policy import as_policy  # it needs the types above

    as_policy(value).install(native)


def sampling_params(options: Sampling) -> _native.SamplingParams:
    """The engine's form of them; greedy where no temperature is named."""
    native = _native.SamplingParams()
    native.temperature = 0.0
    for name, value in options.items():
        _known(name, Sampling)
        if name == "stop":
            value = [value] if isinstance(value, str) else list(value)
        elif name == "logit_bias":
            value = dict(value)
        elif name == "stop_token_ids":
            value = list(value)
        try:
            setattr(native, name, value)
        except TypeError:
            raise TypeError(f"{name}: {value!r} is of type {type(value).__name__}, which does not fit") from None
    return native
