"""Gradient compressors: one method per file; `build` makes one, wrapped as the config asks."""

if __name__ != "wirebench.compressors":
    raise ImportError("compressors is imported as: from wirebench import compressors")

from collections.abc import Sequence
from typing import Any

from wirebench.compressors.bits.coded import Coded, code_of
from wirebench.compressors.bits.narrow import CHUNK
from wirebench.compressors.common.wrappers import DenseBelow, Warmup
from wirebench.config.plugins import Plugins, note_options, options_of
from wirebench.errors import UserError
from wirebench.gradient import conformance
from wirebench.gradient.contract import Bare, Method

PLUGINS = Plugins("wirebench.compressors", "compressor")


def available() -> list[str]:
    """Names that `build` takes."""
    return PLUGINS.available()


def class_of(name: str) -> type[Method]:
    """The class with the settings of the method's paper: its `dense_below`, its `collective`."""
    plugin = PLUGINS.load(name)
    return plugin if issubclass(plugin, Method) else Bare


def dense_below_of(name: str) -> int:
    """The `dense_below` that the method's paper has."""
    return class_of(name).dense_below


def wire(form: str, chunk: int = CHUNK) -> Coded:
    """The wire format of this name, for `collectives.formatted`; UserError for one that there is not.

    chunk  elements that share a scale, where the format does not say how many
    """
    code = code_of(form, "compressors.wire", chunk)
    if code is None:
        raise UserError("compressors.wire: needs the name of a format")
    return code


def build(name: str, *, dense_below: int = 0, warmup: Sequence[float] = (), **options: Any) -> Method:
    """The compressor `name` with its options, wrapped where `dense_below` or `warmup` is given.

    Raises UserError for one that lacks what a compressor must have.
    """
    plugin = PLUGINS.build(name, **options)
    compressor = conformance.method_of(plugin)
    if warmup:
        compressor = Warmup(compressor, tuple(warmup))
    if dense_below:
        compressor = DenseBelow(compressor, dense_below)
    note_options(compressor, {**options_of(plugin), "dense_below": dense_below, "warmup": list(warmup)})
    return compressor
