"""What a command prints for a reader who may have gone."""

import os
import sys

from wirebench.errors import UserError

BROKEN_PIPE = 141
"""What a shell reports for a program whose reader went away (128 + SIGPIPE)."""


def show(text: str) -> int:
    """Print `text` at once; return 0, or silently 141 if the reader has gone (`| head`).

    Raises UserError if it cannot be written, as to a full disk.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        # The interpreter flushes standard output once more when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        raise UserError(f"standard output: {error.strerror or error}") from error
    return 0
