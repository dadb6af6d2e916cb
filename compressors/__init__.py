"""Gradient compressors: one method per file; `build` makes one, wrapped as the config asks."""

from collections.abc import Sequence
from typing import Any

from compressors.common.wrappers import DenseBelow, Warmup
from wirebench.config.plugins import Plugins
from wirebench.gradient.contract import Compressor, Method

PLUGINS = Plugins("compressors", "compressor")


def available() -> list[str]:
    """Names that `build` takes."""
    return PLUGINS.available()


def dense_below_of(name: str) -> int:
    """The `dense_below` that the method's paper has."""
    return getattr(PLUGINS.load(name), "dense_below", Method.dense_below)


def build(name: str, *, dense_below: int = 0, warmup: Sequence[float] = (), **options: Any) -> Compressor:
    """The compressor `name` with its options, wrapped where `dense_below` or `warmup` is given."""
    compressor: Compressor = PLUGINS.build(name, **options)
    if warmup:
        compressor = Warmup(compressor, tuple(warmup))
    if dense_below:
        compressor = DenseBelow(compressor, dense_below)
    return compressor
