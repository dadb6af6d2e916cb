"""JSON and TOML that somebody else wrote: whatever is wrong with a text is a ValueError."""

import json
import tomllib
from typing import Any

_TOO_DEEP = "it is nested too deeply"


def json_of(text: str | bytes) -> Any:
    """What a JSON text says; ValueError where it is none, also where Python's own parser gives up on its depth."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def toml_of(text: str) -> dict[str, Any]:
    """What a TOML text says; ValueError where it is none, also where Python's own parser gives up on its depth."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
