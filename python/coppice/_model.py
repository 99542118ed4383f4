"""Models: loading one, and what it can do."""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from coppice import _native
from coppice._options import CacheOptions, Sampling, sampling_params, set_cache, set_plain
from coppice._session import Chat, Generation, Session, token_array

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from numpy.typing import ArrayLike, NDArray


def load(model: str | PathLike[str] = "smollm2", *, gate: str | PathLike[str] | None = None,
         weights: Literal["packed", "float32"] = "packed", threads: int = 0, **cache: Unpack[CacheOptions]) -> Model:
    """Loads a model: a GGUF file, a Hugging Face folder, or "smollm2", the default model that `make demo` fetches.

    gate: a gate file, or "none"; None: the one shipped for the model, if any. weights: packed as stored, or float32
    (dequantised: slow, exact). threads: of the process; 0: all processors it may use. The rest is how caches are kept
    unless using() says otherwise; the budget is 1,024 entries per KV head where it is not named.
    """
    native = _native.ModelOptions()
    native.model = fspath(model)
    native.gate = "" if gate is None else fspath(gate)
    set_plain(native, "weights", weights)
    if not 0 <= threads <= 1024:
        raise ValueError(f"threads must be 0 to 1024, got {threads}")
    native.threads = threads
    native.budget = "1024"
    set_cache(native, cache)
    return Model(_native.Model(native), native)


class Model:
    """A loaded model with settings for its caches. Weights are shared by all that using() makes of it."""

    def __init__(self, native: _native.Model, options: _native.ModelOptions):
        self._native, self._options = native, options

    def using(self, **cache: Unpack[CacheOptions]) -> Model:
        """The same model with other settings of the cache: model.using(policy="snapkv", budget=64)."""
        options = self._options.copy()
        set_cache(options, cache)
        return Model(self._native, options)

    def generate(self, prompt: str | ArrayLike, *, images: Sequence[str | PathLike[str]] = (),
                 score_prompt: bool = False, **sampling: Unpack[Sampling]) -> Generation:
        """Continues `prompt` (text as it stands, or token ids) in a cache of its own: as `coppice run --raw`.

        The generation's .session holds what was kept. See Session.generate.
        """
        ids = token_array(self.encode(prompt, begin=True) if isinstance(prompt, str) else prompt)
        most = sampling_params(sampling).max_tokens
        length = None if most is None else max(1, len(ids)) + max(0, most)
        session = Session(self, _native.Session(self._native, self._options, length, 1))
        return session.generate(ids, images=images, score_prompt=score_prompt, **sampling)

    def session(self, *, length: int | None = None, forks: int = 1) -> Session:
        """An empty text with a cache of its own.

        length: tokens that it is to come to at most, where that is known; what a budget that is a share counts from.
        None: the model's trained range. forks: sessions that the cache has room for, fork() included.
        """
        return Session(self, _native.Session(self._native, self._options, length, forks))

    def chat(self, *, system: str = "", keep_system: bool = False, think: bool | None = None,
             length: int | None = None) -> Chat:
        """A conversation through the model's own template.

        keep_system: the system message is never evicted. think: tells the template whether the model shall think
        first, where it asks; None: its own default. length: as in session().
        """
        return Chat(self, _native.Session.chat(self._native, self._options, length, system, keep_system, think))

    def encode(self, text: str, *, special: bool = True, begin: bool = False) -> NDArray[np.int32]:
        """Token ids. special: control tokens written in the text count. begin: with what the vocabulary puts around
        a text, such as a begin token."""
        return self._native.encode(text, special, begin)

    def decode(self, tokens: ArrayLike) -> str:
        """The text of token ids, control tokens included."""
        return self._native.decode(token_array(tokens))

    @property
    def sizes(self) -> dict[str, Any]:
        """architecture, layers, heads, kv_heads, head_dim, hidden_size, vocab_size, context (positions trained)."""
        return self._native.sizes

    @property
    def path(self) -> str:
        """Of its file or folder."""
        return self._native.path

    @property
    def gate_kind(self) -> str:
        """retention, kvzap, fastkvzip; empty where it has no gate."""
        return self._native.gate_kind

    @property
    def end_token_ids(self) -> list[int]:
        return self._native.end_token_ids

    @property
    def has_chat_template(self) -> bool:
        return self._native.has_chat_template

    @property
    def load_seconds(self) -> float:
        return self._native.load_seconds

    def __repr__(self) -> str:
        return f"<coppice model {self.path}>"
