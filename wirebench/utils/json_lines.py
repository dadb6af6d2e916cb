"""Files of measurements: a header line of JSON that says where and how, then one line per result.

A number that is not whole has DIGITS digits: no clock, sensor or loss here has more.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from wirebench.errors import UserError
from wirebench.utils import user_files
from wirebench.utils.parsing import json_of

DIGITS = 7
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


def rounded(value: Any) -> Any:
    """A JSON value whose numbers have the digits that results keep."""
    if isinstance(value, float):
        return value if value.is_integer() or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def json_text(value: Any) -> str:
    """JSON in one line without spaces; ValueError for a number that is not finite."""
    return json.dumps(value, separators=SEPARATORS, allow_nan=False, ensure_ascii=False)
