"""Eviction policies: the table of those built in, and one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from coppice import _native

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_NEEDS = ("keys", "values", "queries", "attention", "log_beta")


def policies() -> dict[str, str]:
    """The built-in policies by name, with a line on each."""
    return _native.policies()


class Row:
    """What one layer and KV head holds, as a score sees it: entries by rising position. Arrays are copies.

    What the policy did not name in `needs` is not there.
    """

    __slots__ = ("layer", "head", "seen", "positions", "keys", "values", "queries", "attention", "log_beta")

    layer: int
    head: int
    seen: int
    """Tokens read so far; the newest has the position seen - 1."""
    positions: NDArray[np.int64]
    """[L]: places of the entries' tokens in the text."""
    keys: NDArray[np.float32]
    """[L, D], as they are stored: rotated."""
    values: NDArray[np.float32]
    """[L, D]."""
    queries: NDArray[np.float32]
    """[w, G, D]: the newest w queries of the G query heads that share the row, rotated and times the scale of scores."""
    attention: NDArray[np.float32]
    """[w, G, L]: what those pay to the row's entries; each query's shares sum to 1."""
    log_beta: NDArray[np.float32]
    """[L], of the model's retention gate."""

    def __init__(self, layer: int, head: int, seen: int, arrays: dict[str, Any]):
        self.layer, self.head, self.seen = layer, head, seen
        for name, array in arrays.items():
            setattr(self, name, array)

    def __getattr__(self, name: str) -> Any:  # reached where the slot is empty
        if name in _NEEDS:
            raise AttributeError(f"row.{name}: the policy has to name it, needs=[{name!r}, ...]")
        raise AttributeError(f"a row has no {name}")

    def __len__(self) -> int:
        return len(self.positions)


@runtime_checkable
class ScoresRows(Protocol):
    """Any object with a name and a score; the other fields of Policy are read where it has them."""

    def score(self, row: Row) -> ArrayLike:
        """[L] numbers, one for each entry of the row; the higher stay."""


class Policy:
    """Scores entries in Python; the engine chooses, evicts, and keeps the bound, as for every policy.

    Derive from it and define score(row), or make one of a function with @policy. score() is called for every layer
    and KV head whenever something has to go, that is at each step once the budget is full.
    """

    name: str = ""
    """In reports; the class's name where it is empty."""
    needs: Iterable[str] = ()
    """What score() reads besides positions: keys, values, queries, attention, log_beta. Nothing else is prepared."""
    scope: Literal["head", "layer", "global"] = "head"
    """Whose entries compete: those of one head, of a layer's heads, or of the whole model."""
    sinks: int = 0
    """First tokens that always stay, unless the cache's options say otherwise."""
    recent: int = 0
    """Newest tokens that always stay, at most half the budget, unless the cache's options say otherwise."""
    floor: int = 0
    """Entries that every head keeps, unless the cache's options say otherwise."""
    window: int = 32
    """How many of the newest queries there are in row.queries and row.attention."""

    def score(self, row: Row) -> ArrayLike:
        """[L] numbers, one for each entry of the row; the higher stay. NumPy arrays, lists, torch tensors on the CPU."""
        raise NotImplementedError(f"{type(self).__name__} defines no score(row)")

    def __repr__(self) -> str:
        return f"<coppice policy {_name_of(self)}>"

    def install(self, native: _native.ModelOptions) -> None:
        """Makes it the policy of `native`."""
        _install(self, native)


class _FunctionPolicy(Policy):
    def __init__(self, function: Callable[[Row], ArrayLike], settings: dict[str, Any]):
        self._function = function
        self.name = function.__name__.replace("_", "-")
        self.__doc__ = function.__doc__
        for key, value in settings.items():
            if value is not None:
                setattr(self, key, value)

    def score(self, row: Row) -> ArrayLike:
        return self._function(row)

    __call__ = score


def policy(function: Callable[[Row], ArrayLike] | None = None, *, name: str | None = None,
           needs: Iterable[str] | None = None, scope: Literal["head", "layer", "global"] | None = None,
           sinks: int | None = None, recent: int | None = None, floor: int | None = None,
           window: int | None = None) -> Any:
    """A policy out of a function from a Row to its scores. With or without arguments; see Policy for what they mean.

        @coppice.policy(needs=["attention"], sinks=4, window=16)
        def most_looked_at(row):
            return row.attention.mean(axis=(0, 1))
    """
    settings = {"name": name, "needs": needs, "scope": scope, "sinks": sinks, "recent": recent, "floor": floor,
                "window": window}
    if function is not None:
        return _FunctionPolicy(function, settings)
    return lambda decorated: _FunctionPolicy(decorated, settings)


class _Wrapped(Policy):
    """An object of somebody else's with a score()."""

    def __init__(self, inner: Any):
        self.name = getattr(inner, "name", "") or type(inner).__name__
        for field in ("needs", "scope", "sinks", "recent", "floor", "window"):
            if hasattr(inner, field):
                setattr(self, field, getattr(inner, field))
        self.score = inner.score  # type: ignore[method-assign]


def as_policy(value: Any) -> Policy:
    """`value` as a Policy: itself, an object with a score(row), or a function."""
    if isinstance(value, Policy):
        return value
    if isinstance(value, type):
        raise TypeError(f"policy: {value.__name__} is a class; expected an object of it, {value.__name__}()")
    if isinstance(value, ScoresRows):
        return _Wrapped(value)
    if callable(value):
        return _FunctionPolicy(value, {})
    raise TypeError(f"policy: expected a name, a coppice.Policy, or an object with score(row), got {value!r}")


def _name_of(made: Policy) -> str:
    return made.name or type(made).__name__


def _install(made: Policy, native: _native.ModelOptions) -> None:
    wanted = (made.needs,) if isinstance(made.needs, str) else tuple(made.needs)
    needs = _native.PolicyNeeds()
    for need in wanted:
        if need == "positions":
            continue
        if need not in _NEEDS:
            raise ValueError(f"policy {_name_of(made)}: needs names {need!r}, expected some of "
                             f"positions, {', '.join(_NEEDS)}")
        setattr(needs, need, True)
    traits = _native.PolicyTraits()
    traits.name = _name_of(made)
    traits.needs = needs
    for field in ("scope", "sinks", "recent", "floor", "window"):
        setattr(traits, field, getattr(made, field))

    def score(layer, head, seen, arrays):
        return made.score(Row(layer, head, seen, arrays))

    native.set_python_policy(traits, score)
