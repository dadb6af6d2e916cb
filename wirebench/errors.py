"""The ways a run can end early, and the exit code of each (docs/running.md)."""

import signal

LONGEST = 900
"""Characters of an error's line; what was given may be as long as a file."""


def line_of(message: object) -> str:
    """The message in a line that can be read: a very long one without its middle."""
    text = str(message)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 200]} [...] {text[-190:]}"


class UserError(ValueError):
    """A mistake of the user's: one line that says what, where and what is allowed. Exit code 2."""

    exit_code = 2


class Unwritable(UserError):
    """What a run keeps cannot be written, as a rule because a disk is full. Rank 0 alone meets it."""


class Diverged(RuntimeError):
    """Training produced a loss or gradient that is not finite, or its own guard stopped it. Exit code 3."""

    exit_code = 3


class PeerLost(RuntimeError):
    """Another rank died or stopped answering; the message names it where it is known. Exit code 1."""

    exit_code = 1


class Stopped(Exception):
    """A signal ended a tool: the number after 128 is the exit code, as a shell reports it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number
