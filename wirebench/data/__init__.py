"""Data sets: one file per set; `build(name, root, **options)` opens one, `Shard` is one worker's share of it."""

from typing import Any

from wirebench.config.plugins import Plugins
from wirebench.data.base import Dataset, Key
from wirebench.data.shard import Shard

__all__ = ["PLUGINS", "Dataset", "Key", "Shard", "available", "build"]

PLUGINS = Plugins(
    "wirebench.data", "data", helpers=frozenset({"base", "download", "memory", "sequences", "shard"}), fixed=("root",)
)


def available() -> list[str]:
    """Names that `build` takes."""
    return PLUGINS.available()


def build(name: str, root: str = "", **options: Any) -> Dataset:
    """The data set `name` under the folder `root`; UserError where it is missing, broken or takes no such option."""
    return PLUGINS.build(name, **{**PLUGINS.given(name, root=root), **options})
