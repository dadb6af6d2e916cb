"""Standard output and error that may be lost (a reader that left, a full disk, a terminal that is gone) at no cost.

What is shown is not worth a run: the first failure to write turns a stream off, and drops what it would have shown.
"""

import contextlib
import os
import sys
from typing import Any, TextIO, cast


class LossyStream:
    """A text stream, and everything that it offers, whose `write` and `flush` never fail.

    lost  why nothing more is written, '' while all is well
    told  the stream that reports the loss, once; None: no report
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = ""
        self.told: LossyStream | None = None

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        if not self.lost:
            try:
                self._stream.write(text)
            except OSError as error:
                self._lose(error)
        return len(text)

    def flush(self) -> None:
        """Hand on what is buffered, or drop it."""
        if not self.lost:
            try:
                self._stream.flush()
            except OSError as error:
                self._lose(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _lose(self, error: OSError) -> None:
        self.lost = error.strerror or type(error).__name__
        # What is still buffered goes where it does no harm: the interpreter flushes it once more at its end.
        with contextlib.suppress(OSError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)
            self._stream.flush()
        if self.told is not None:
            self.told.write(f"warning: standard output is lost ({self.lost}); the run continues without output\n")
            self.told.flush()


def outlive_output() -> None:
    """From now on losing standard output or standard error does not end this process."""
    open_output()
    sys.stdout, sys.stderr = cast(TextIO, LossyStream(sys.stdout)), cast(TextIO, LossyStream(sys.stderr))


def open_output() -> None:
    """Give this process a standard output and error where it was started without: they lead nowhere."""
    sys.stdout, sys.stderr = _open(1, sys.stdout), _open(2, sys.stderr)


def tell_of_loss() -> None:
    """Called when training begins: from now on standard error reports the loss of standard output."""
    if isinstance(sys.stdout, LossyStream) and isinstance(sys.stderr, LossyStream):
        sys.stdout.told = sys.stderr


def _open(number: int, stream: TextIO | None) -> TextIO:
    """The stream; where Python found its descriptor closed, one that leads nowhere."""
    if stream is not None:
        return stream
    nowhere = os.open(os.devnull, os.O_WRONLY)
    # The next file to be opened would take the free number, and get what libraries print.
    if nowhere != number:
        try:
            os.fstat(number)
        except OSError:
            os.dup2(nowhere, number)
    return os.fdopen(nowhere, "w")
