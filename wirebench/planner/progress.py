"""How far a command is, on standard error, once it takes longer: one line that a terminal overwrites."""

import sys
import time
from collections.abc import Callable
from typing import IO

QUIET_SECONDS, SECONDS_BETWEEN_LINES = 2.0, 5.0


class RankingProgress:
    """Shows a text in one place on a terminal; elsewhere a line of it every few seconds.

    stream  standard error
    """

    def __init__(self, stream: IO[str] | None = None, now: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._now = stream or sys.stderr, now
        self._due, self._shown = now() + QUIET_SECONDS, False

    def __enter__(self) -> "RankingProgress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def tell(self, text: str) -> None:
        """Show it, if it is time."""
        if self._now() < self._due:
            return
        live = self._stream.isatty()
        self._due, self._shown = self._now() + (0.1 if live else SECONDS_BETWEEN_LINES), live
        self._stream.write(f"\r\x1b[K{text}" if live else f"{text}\n")
        self._stream.flush()

    def close(self) -> None:
        """Leave no line on the terminal."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False
