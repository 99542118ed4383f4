"""Token streams: sessions of text, chats, and the generations that extend them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import numpy as np

from coppice import _native
from coppice._options import Sampling, sampling_params
from coppice._results import Kept, RowContent, Scores, Usage

if TYPE_CHECKING:
    from typing import Unpack

    from numpy.typing import ArrayLike, NDArray

    from coppice._model import Model


class Generation(Iterator[str]):
    """A text on its way: iterate over it for pieces as they come, or ask for .text, which runs it to its end.

    Pieces hold whole characters, without stop strings and end tokens. Where it fails it raises, and the session has
    what was read until then.
    """

    def __init__(self, session: Session):
        self.session = session
        self._number = session._requests
        self._pieces: list[str] = []
        self._new: list[tuple[Any, Any, Any]] = []
        self._read: list[tuple[Any, Any, Any]] = []
        self._usage: str | None = None
        self._reason: str | None = None

    def __next__(self) -> str:
        while self._step():
            if self._pieces[-1]:
                return self._pieces[-1]
        raise StopIteration

    def _step(self) -> bool:
        """One step; False where there was none to do. The last may still bring text."""
        if self.finish_reason is not None:
            return False
        try:
            output = self.session._native.next()
        except BaseException:
            self._reason = "error"
            raise
        assert output is not None
        self._pieces.append(output.text)
        self._new.append(output.tokens)
        self._read.append(output.prompt_scores)
        self._usage = output.usage
        self._reason = output.finish_reason or None
        return True

    def finish(self) -> Generation:
        """Runs it to its end."""
        while self._step():
            pass
        return self

    def stop(self) -> None:
        """Ends it now; the session has what was read and written."""
        if self.finish_reason is None:
            self.session.stop()

    @property
    def text(self) -> str:
        """All of it, once it has ended."""
        self.finish()
        return "".join(self._pieces)

    @property
    def scores(self) -> Scores:
        """The tokens written so far, an end token included; log-probabilities if `logprobs` was set."""
        return _joined(self._new)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """The tokens written so far, an end token included."""
        return self.scores.tokens

    @property
    def prompt_scores(self) -> Scores:
        """What the cache as it was predicted of the tokens read, where that was asked for."""
        return _joined(self._read)

    @property
    def finish_reason(self) -> str | None:
        """stop (an end token or stop text), length, stopped (by stop() or another request), error; None: it runs."""
        if self._reason is None and not (self.session._requests == self._number and self.session._native.running):
            self._reason = "stopped"
        return self._reason

    @property
    def usage(self) -> Usage | None:
        """Up to date after every step; None before the first."""
        return None if self._usage is None else Usage.from_json(self._usage, self.session.model.load_seconds)

    def __repr__(self) -> str:
        return f"<generation: {sum(len(new[0]) for new in self._new)} tokens, {self.finish_reason or 'running'}>"


def _joined(parts: list[tuple[Any, Any, Any]]) -> Scores:
    if not parts:
        return Scores(np.empty(0, np.int32), np.empty(0, np.float32), [])
    return Scores(np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts]),
                  [best for part in parts for best in part[2]])


def token_array(prompt: Any) -> NDArray[np.int64]:
    """Token ids as the engine takes them. Raises TypeError for what is not whole numbers in a row."""
    ids = np.asarray(prompt)
    if ids.size == 0 and ids.ndim == 1:
        return ids.astype(np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TypeError(f"a prompt is text or a row of token ids, got {ids.dtype} of shape {ids.shape}")
    return ids.astype(np.int64)


def _files(images: Sequence[str | PathLike[str]]) -> list[str]:
    return [fspath(image) for image in images]


class Session:
    """One text that grows: what is read and written goes on behind what there is, through one bounded cache.

    One request runs at a time; another one stops it. Sessions of one model may be used from several threads, whose
    steps then take turns.
    """

    def __init__(self, model: Model, native: _native.Session):
        self.model = model
        self._native = native
        self._requests = 0  # begun so far: a generation knows by it whether it is the one that runs

    def generate(self, prompt: str | ArrayLike = "", *, images: Sequence[str | PathLike[str]] = (),
                 score_prompt: bool = False, **sampling: Unpack[Sampling]) -> Generation:
        """Reads `prompt` (text, or token ids) and continues it.

        score_prompt: also keep the log-probabilities of the prompt's tokens. images: picture files, for the places
        that the text has for them.
        """
        params = sampling_params(sampling)
        if isinstance(prompt, str):
            ids = self.model.encode(prompt, begin=len(self) == 0) if prompt or len(self) == 0 else np.empty(0, np.int64)
        else:
            ids = prompt
        self._native.start(token_array(ids), params, score_prompt, _files(images))
        self._requests += 1
        return Generation(self)

    def read(self, text: str | ArrayLike, *, score: bool = False, logprobs: int = 0,
             images: Sequence[str | PathLike[str]] = ()) -> Generation:
        """Reads text or token ids and writes nothing. score: .prompt_scores tells what each token was worth to the
        cache as it was, with `logprobs` alternatives."""
        return self.generate(text, images=images, score_prompt=score, max_tokens=0, logprobs=logprobs).finish()

    def fork(self) -> Session:
        """Another session with the same past, to ask two things of one text; see `forks` of Model.session."""
        return Session(self.model, self._native.fork())

    def __len__(self) -> int:
        """Tokens read and written."""
        return len(self.tokens)

    def __bool__(self) -> bool:
        return True

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Read and written, in order."""
        return self._native.tokens()

    @property
    def settings(self) -> dict[str, Any]:
        """Of the policy, with nothing left open: policy, budget_entries, scope, sinks, recent, floor, options."""
        return self._native.eviction()

    def kept(self) -> Kept:
        """Which entries the cache holds now, and what they score."""
        return Kept(*self._native.kept())

    def row(self, layer: int, head: int) -> RowContent:
        """The keys and values themselves of one layer and KV head."""
        return RowContent(*self._native.row(layer, head))

    def stop(self) -> None:
        """Ends the request that runs, if any."""
        self._native.stop()

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lower()} of {len(self)} tokens, policy {self.settings['policy']}>"


class Chat(Session):
    """A conversation: each turn reads only what is new, where the model's template allows it."""

    def ask(self, text: str, *, images: Sequence[str | PathLike[str]] = (),
            **sampling: Unpack[Sampling]) -> Generation:
        """One user turn, and the answer. images: picture files, which stand before the text."""
        self._native.start_turn(text, sampling_params(sampling), _files(images))
        self._requests += 1
        return Generation(self)

    def generate(self, *_args: Any, **_sampling: Any) -> Generation:
        raise TypeError("a chat takes turns: ask(); Model.session() continues text as it stands")

    def fork(self) -> Session:
        raise TypeError("a chat cannot be forked; Model.session() can")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The turns so far; those that are on their way are not among them."""
        return json.loads(self._native.messages())
