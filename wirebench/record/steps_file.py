"""Open steps.jsonl when a run begins or resumes: the steps that it will not repeat are kept."""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from wirebench.record.archive import set_damaged_aside
from wirebench.utils.files import is_stream, open_stream, target_of, write_atomically
from wirebench.utils.parsing import json_of

MOST_NAMED = 3
"""Damaged lines that are named."""
BEGIN = b'{"step": '
"""The first bytes of every line."""


def open_steps(path: Path, first_step: int, note: Callable[[str], None]) -> TextIO:
    """Open it for further lines, with those before `first_step` kept; a damaged file is set aside, and `note` told.

    Raises OSError.
    """
    if is_stream(path):
        return io.TextIOWrapper(open_stream(path), encoding="utf-8")
    if first_step == 0 or not path.exists():
        write_atomically(path, "")
        return path.open("a")
    source, kept = path, 0
    with path.open("rb") as lines:
        damaged = [number for number, line in enumerate(lines, 1) if _kept(line, first_step) is None]
    if damaged:
        source = set_damaged_aside(path)
    target = target_of(path)
    partial = target.with_name(f".{target.name}.partial")
    with source.open("rb") as lines, partial.open("wb") as file:
        for line in lines:
            if text := _kept(line, first_step):
                kept += file.write(text) > 0
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, target)
    if damaged:
        named = ", ".join(map(str, damaged[:MOST_NAMED]))
        note(f"{path} is damaged (line {named}): set aside as {source.name}, {kept} steps of it are kept")
    return path.open("a")


def _kept(line: bytes, first_step: int) -> bytes | None:
    """The line, if it is of a step before `first_step`; b"" for another, None for one that holds no step.

    A last line that a kill cut short is dropped, and no damage: it begins as every line does.
    """
    try:
        if json_of(line.decode())["step"] < first_step:
            return line.rstrip(b"\n") + b"\n"
    except (ValueError, KeyError, TypeError):
        whole = line.endswith(b"\n") or line[: len(BEGIN)] != BEGIN[: len(line)]
        return None if whole else b""
    return b""
