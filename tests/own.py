"""Plugins of one's own, tested alone in the contract tests: WIREBENCH_COMPRESSOR="mine.cyclic density=0.1"."""

import os
import shlex
import tomllib
from collections.abc import Sequence
from typing import Any


def plugin(kind: str) -> list[str]:
    """The words of WIREBENCH_KIND: a dotted path, then options; none where it is not set."""
    return shlex.split(os.environ.get(f"WIREBENCH_{kind.upper()}", ""))


def names(kind: str, available: Sequence[str]) -> list[str]:
    """The plugin of one's own, or else all that there are."""
    return plugin(kind)[:1] or list(available)


def options(kind: str) -> dict[str, Any]:
    """The options of the plugin of one's own; words need no quotes."""
    found: dict[str, Any] = {}
    for key, _, text in (word.partition("=") for word in plugin(kind)[1:]):
        try:
            found[key] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = text
    return found
