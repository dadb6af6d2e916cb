"""Parse JSON, TOML and words from untrusted sources: every malformed text raises ValueError."""

import json
import tomllib
from collections.abc import Callable
from typing import Any

_TOO_DEEP = "it is nested too deeply"


def json_of(text: str | bytes, hook: Callable[[dict[str, Any]], Any] | None = None, strict: bool = True) -> Any:
    """What a JSON text says; ValueError where it is none, also where Python's own parser gives up on its depth.

    hook    what takes the place of each object, the innermost first
    strict  whether a text with control characters is refused
    """
    try:
        return json.loads(text, object_hook=hook, strict=strict)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def toml_of(text: str) -> dict[str, Any]:
    """What a TOML text says; ValueError where it is none, also where Python's own parser gives up on its depth."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def value_of(text: str) -> Any:
    """A TOML value where the text is one, else the text itself: names and paths need no quotes."""
    try:
        return toml_of(f"value = {text}")["value"]
    except ValueError:
        return text


def plugin_of(text: str) -> tuple[str, dict[str, Any]]:
    """A plugin's name and its options, of `name:key=value:key=value`; ValueError for anything else."""
    name, *words = text.split(":")
    pairs = [word.partition("=") for word in words]
    if not name or not all(key and equals for key, equals, _ in pairs):
        raise ValueError(f"cannot read {text!r}; it reads name:key=value:key=value")
    given = {key: value_of(value) for key, _, value in pairs}
    if "name" in given:
        raise ValueError(f"{text!r} has two names; the first word is the name")
    if len(given) < len(pairs):
        raise ValueError(f"{text!r} gives an option twice")
    return name, given
