"""Files of measurements: a header line of JSON that says where and how, then one line per result."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from wirebench.errors import UserError
from wirebench.utils import user_files
from wirebench.utils.parsing import json_of


def save(path: Path, header: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> None:
    """Write the header and the lines in one piece; UserError where the file cannot be written."""
    user_files.write(path, "".join(f"{json.dumps(line)}\n" for line in (header, *lines)))


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
