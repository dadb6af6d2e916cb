"""Markdown: tables, and text that a program keeps up to date between two marker lines of a file that people write."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from wirebench.errors import UserError
from wirebench.utils import user_files


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table with this head, and an empty line after it."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(cells) + " |" for cells in rows), ""]


def replaced(path: Path, shown: str, begin: str, end: str) -> str:
    """The file's text with `shown` in place of what stands between the markers; UserError where they are missing."""
    return inserted(path, user_files.read(path), shown, begin, end)


def inserted(path: Path, text: str, shown: str, begin: str, end: str) -> str:
    """`text` with `shown` in place of what stands between the markers; the UserError names `path`, its file."""
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise UserError(f"{path}: needs the line {begin} once, and after it the line {end} once")
    return f"{text.partition(begin)[0]}{begin}\n{shown}\n{end}{text.partition(end)[2]}"


def kept(path: Path, sections: Mapping[tuple[str, str], str], write: bool) -> bool:
    """Whether the file has these texts between their markers (begin, end); with `write` it gets them."""
    before = after = user_files.read(path)
    for markers, shown in sections.items():
        after = inserted(path, after, shown, *markers)
    if write:
        user_files.write(path, after)
    return write or after == before
