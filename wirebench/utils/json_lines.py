"""Files of measurements: a header line of JSON that says where and how, then one line per result.

A number that is not whole has DIGITS digits: a clock's nanoseconds, and all of a 32-bit float.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from wirebench.errors import UserError
from wirebench.utils import user_files
from wirebench.utils.parsing import json_of

DIGITS = 10
MOST = 17
"""Digits that tell every number from its neighbours."""
SEPARATORS = (",", ":")


def save(path: Path, header: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> None:
    """Write the header and the lines in one piece; UserError where the file cannot be written."""
    texts = (json.dumps(rounded(line), separators=SEPARATORS) for line in (header, *lines))
    user_files.write(path, "".join(f"{text}\n" for text in texts))


def load(path: Path, kind: str, script: str) -> tuple[dict[str, Any], list[Any]]:
    """The header and the result lines of a file that `script` wrote; UserError unless its header names this `kind`."""
    text = user_files.read(path)
    try:
        lines = [json_of(line) for line in text.splitlines()]
    except ValueError as error:
        raise UserError(f"{path}: cannot be read as {kind} ({error})") from error
    if not lines or not isinstance(lines[0], dict) or lines[0].get("kind") != kind:
        raise UserError(f"{path}: is no file of {script}: its first line names no {kind!r}")
    return lines[0], lines[1:]


def rounded(value: Any, digits: int = DIGITS, listed: int = DIGITS) -> Any:
    """A JSON value whose numbers have `digits` digits; `listed`: digits of numbers in lists.

    A number has more where it would end in a 5, so that rounding it again gives what rounding it once gives.
    """
    if isinstance(value, float):
        return _rounded(value, digits)
    if isinstance(value, Mapping):
        return {key: rounded(each, digits, listed) for key, each in value.items()}
    return [rounded(each, listed, listed) for each in value] if isinstance(value, list | tuple) else value


def _rounded(number: float, digits: int) -> float:
    if number.is_integer() or not math.isfinite(number):
        return number
    texts = (f"{number:.{count}g}" for count in range(digits, MOST))
    return float(next((text for text in texts if not text.partition("e")[0].rstrip("0").endswith("5")), number))


def json_text(value: Any) -> str:
    """JSON in one line without spaces; ValueError for a number that is not finite."""
    return json.dumps(value, separators=SEPARATORS, allow_nan=False, ensure_ascii=False)
