"""Language models with a KV cache whose bound always holds.

    import coppice

    model = coppice.load("smollm2", policy="dbtrimkv", budget=256)
    for piece in model.generate("Once upon a time", max_tokens=64):
        print(piece, end="", flush=True)

    session = model.session()
    session.read(open("book.txt").read())
    session.kept().positions(layer=0, head=0)     # what the cache still holds

A policy of one's own scores entries in Python and goes through the same cache, bound and eviction:

    @coppice.policy(needs=["keys"])
    def low_norm(row):
        return -numpy.linalg.norm(row.keys, axis=-1)

    model.using(policy=low_norm, budget=64).generate("...").text

Everything refused or failed is a coppice.Error that says what was wrong, expected and got.
"""

from importlib import import_module as _import_module

from coppice import _libtorch
from coppice._built import TORCH_VERSION as _torch_version

_libtorch.prepare(_torch_version)
_native = _import_module("coppice._native")

from coppice._model import Model, load  # noqa: E402
from coppice._native import Error  # noqa: E402
from coppice._options import CacheOptions, Sampling  # noqa: E402
from coppice._policy import Policy, Row, policies, policy  # noqa: E402
from coppice._results import Kept, KvUsage, RowContent, Scores, TimingUsage, TokenUsage, Usage  # noqa: E402
from coppice._session import Chat, Generation, Session  # noqa: E402

__version__ = _native.version
__all__ = [
    "CacheOptions", "Chat", "Error", "Generation", "Kept", "KvUsage", "Model", "Policy", "Row", "RowContent",
    "Sampling", "Scores", "Session", "TimingUsage", "TokenUsage", "Usage", "load", "policies", "policy",
]
