"""Files of measurements: a line of JSON that says where and how, then a line for every cell."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from wirebench.errors import UserError
from wirebench.utils.files import write_atomically


def save(path: Path, header: Mapping[str, Any], lines: Iterable[Mapping[str, Any]]) -> None:
    """Write the header and the lines, at once; UserError where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(f"{json.dumps(line)}\n" for line in (header, *lines)))
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror})") from error


def load(path: Path, kind: str, script: str) -> tuple[dict[str, Any], list[Any]]:
    """Read (header, lines) of a file whose header's `kind` is this, as `script` writes it; else UserError."""
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(f"{path}: cannot be read as {kind} ({error})") from error
    if not lines or not isinstance(lines[0], dict) or lines[0].get("kind") != kind:
        raise UserError(f"{path}: is no file of {script}: its first line names no {kind!r}")
    return lines[0], lines[1:]
