"""Processes, as the system knows them."""

from pathlib import Path


def began(pid: int) -> int | None:
    """Clock ticks from the boot to the begin of process `pid`; None where no such process runs any more.

    With it a process is known from a later one of the same number; psutil's time moves when the clock is set.
    """
    try:
        # The name, in parentheses, may hold anything.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if state in "ZX" else int(fields[18])
