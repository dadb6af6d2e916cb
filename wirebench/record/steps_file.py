"""steps.jsonl as a run finds it when it begins or goes on: the steps that it will not do again are kept."""

from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from wirebench.record.archive import set_damaged_aside
from wirebench.utils.files import is_stream, write_atomically
from wirebench.utils.parsing import json_of

MOST_NAMED = 3
"""Damaged lines that are named."""
BEGIN = b'{"step": '
"""What every line begins with."""


def open_steps(path: Path, first_step: int, note: Callable[[str], None]) -> TextIO:
    """Open it for further lines, with those before `first_step` kept; a damaged file is set aside, and `note` told.

    Raises OSError.
    """
    if is_stream(path):
        return path.open("a")
    kept: list[str] = []
    if first_step > 0 and path.exists():
        kept, damaged = _lines_before(path.read_bytes(), first_step)
        if damaged:
            aside, lines = set_damaged_aside(path), ", ".join(map(str, damaged[:MOST_NAMED]))
            note(f"{path} is damaged (line {lines}): set aside as {aside.name}, {len(kept)} steps of it are kept")
    write_atomically(path, "".join(kept))
    return path.open("a")


def _lines_before(content: bytes, first_step: int) -> tuple[list[str], list[int]]:
    """The lines of the steps before `first_step`, and the numbers, from 1, of lines that hold no step.

    A last line that a kill cut short is dropped, and no damage: it begins as every line does.
    """
    kept, damaged = [], []
    *lines, rest = content.split(b"\n")
    for number, line in enumerate([*lines, rest], 1):
        try:
            text = line.decode()
            if json_of(text)["step"] < first_step:
                kept.append(text + "\n")
        except (ValueError, KeyError, TypeError):
            cut_short = number > len(lines) and line[: len(BEGIN)] == BEGIN[: len(line)]
            if not cut_short:
                damaged.append(number)
    return kept, damaged
