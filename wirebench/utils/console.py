"""Where tools print tables: as wide as the terminal, at a fixed width into a file or a pipe."""

import sys
from typing import IO, Any

from rich.console import Console


class _Console(Console):
    """Whoever reads the output may go away: that is run_tool's to answer, for tables as for `print`."""

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
