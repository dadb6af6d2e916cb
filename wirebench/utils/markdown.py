"""Markdown: tables, and text that a program keeps up to date between two marker lines of a file that people write."""

from collections.abc import Sequence
from pathlib import Path

from wirebench.errors import UserError
from wirebench.utils.files import write_atomically


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table with this head, and an empty line after it."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(cells) + " |" for cells in rows), ""]


def replaced(path: Path, shown: str, begin: str, end: str) -> str:
    """The file's text with `shown` in place of what stands between the markers; UserError where they are missing."""
    return inserted(path, text_of(path), shown, begin, end)


def inserted(path: Path, text: str, shown: str, begin: str, end: str) -> str:
    """`text` with `shown` in place of what stands between the markers; the UserError names `path`, its file."""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UserError(f"{path}: needs the line {begin} once, and after it the line {end} once")
    return f"{text.partition(begin)[0]}{begin}\n{shown}\n{end}{text.partition(end)[2]}"


def text_of(path: Path) -> str:
    """The file's text; UserError where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def write(path: Path, text: str) -> None:
    """Write `text` in one piece; UserError where the file cannot be written."""
    try:
        write_atomically(path, text)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
