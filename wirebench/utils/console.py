"""Where tools print tables: as wide as the terminal, at a fixed width into a file or a pipe."""

import sys
from collections.abc import Collection, Iterable, Sequence
from typing import IO, Any

from rich.console import Console
from rich.table import Table

MOST_WIDTH = 1000


class _Console(Console):
    """Raises BrokenPipeError if the reader of the output has gone; run_tool handles it, for tables as for `print`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(width: int, stream: IO[str] | None = None, **options: Any) -> Console:
    """A console on `stream` (standard output); lines are folded at `width` columns where it is no terminal.

    options  of rich's Console
    """
    made = _Console(file=stream or sys.stdout, **options)
    if not made.is_terminal:
        made.width = width
    return made


def columns(heads: Sequence[str], left: Collection[str] = (), gap: int = 2, **options: Any) -> Table:
    """A table without lines and rows, whose cells are not folded: columns align to the right, but for those in `left`.

    options  of rich's Table
    """
    made = Table(box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0), **options)
    for head in heads:
        made.add_column(head, justify="left" if head in left else "right", no_wrap=True)
    return made


def say(shown_on: Console, lines: Iterable[str]) -> None:
    """Print lines without markup, each in one piece."""
    for line in lines:
        shown_on.print(line, markup=False, highlight=False, soft_wrap=True)


def with_room(shown_on: Console, table: Table) -> Console:
    """The console, wide enough for all cells of a table where it is no terminal: a file has room."""
    if not shown_on.is_terminal:
        needed = shown_on.measure(table, options=shown_on.options.update_width(MOST_WIDTH)).maximum
        shown_on.width = max(shown_on.width, needed)
    return shown_on
