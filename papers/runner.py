"""Runs that a study starts one after the other: shown, ended with their starter, judged, and thinned out."""

import argparse
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from wirebench.cluster.signals import Interrupted, Relay, ends_with_parent
from wirebench.errors import UserError
from wirebench.record import schema

ROOT = Path(__file__).resolve().parents[1]
RESULTS = (ROOT / os.environ.get("WIREBENCH_RESULTS", "results")).resolve()
"""Where studies put their results, and read them; the variable names another folder than the committed one."""
LAST_LINES = 30
"""Lines that are shown of a failed command."""
ANEW = "\r\033[K"
"""Back to the beginning of the line, which is cleared."""
INTERRUPTED = 128 + signal.SIGINT
AFTER_SECONDS = 300.0
"""From one report of a series under way to the next: its figures take seconds, of which short runs would have many."""
BUSY_SECONDS = 2.0
"""Between two looks at runs that other calls make."""
WIREBENCH = [sys.executable, "-m", "wirebench"]
"""The command `wirebench`, also where it is not installed."""

Command = list[str]
Launch = Callable[[Command], int]
"""Runs a command in the repository; returns its exit code."""


class Part(NamedTuple):
    """A command line of a study's run, and how many minutes it takes on two cores of an AMD EPYC."""

    minutes: float
    words: list[str]


class Busy(UserError):
    """Another call makes this run now."""


class Planned(Protocol):
    """A run to be made. Its label names it in messages, and its runs of other turns or seeds alike."""

    @property
    def label(self) -> str:
        """Name of the cell in messages."""

    def check(self) -> None:
        """UserError for what would fail: better now than after half an hour."""

    def is_there(self, out: Path) -> bool:
        """Whether its result is below `out`; UserError for one of other settings."""

    def make(self, out: Path, launch: Launch, again: bool = False) -> bool:
        """Make it below `out`; whether it left a result. Busy where another call does.

        again  in place of an earlier one; without it a result that another call has made since stays
        """


def measure(
    planned: Mapping[Path, Sequence[Planned]],
    launch: Launch,
    again: bool = False,
    after: Callable[[Path], None] | None = None,
) -> list[str]:
    """Make all runs of a study that are not there yet; returns the labels of those that failed, without harm to others.

    Two calls of one command share its runs: each takes what the other neither made nor makes, and both end when all
    runs are there. A call with `again` refuses to share.

    planned  by the folder of their results: of several settings, models or tasks each has its own, and one call has
             them all, so that the number of cells and the time left are the study's
    again    also those that are there
    after    called with a folder after a run where it was not for AFTER_SECONDS: long series are seen as they go
    """
    cells = [(out, each) for out, those in planned.items() for each in those]
    for _, each in cells:
        each.check()
    missing = [(out, each) for out, each in cells if again or not each.is_there(out)]
    if len(missing) < len(cells):
        there = len(cells) - len(missing)
        print(f"{there} of {len(cells)} runs are there already; --again makes them anew", file=sys.stderr)
    failed: list[str] = []
    took: dict[Path, list[float]] = {out: [] for out in planned}
    shown = dict.fromkeys(planned, time.monotonic())
    queue, told, busy = deque(missing), set[int](), 0
    while queue:
        out, each = queue.popleft()
        if not again and each.is_there(out):  # another call has made it
            continue
        title = f"{out.name}: {each.label}" if len(planned) > 1 else each.label
        if id(each) not in told:
            left = _left(took, [out, *(folder for folder, _ in queue)])
            print(f"cell {len(told) + 1} of {len(missing)}: {title}{left}", file=sys.stderr)
        began = time.monotonic()
        try:
            if each.make(out, launch, again):
                took[out].append(time.monotonic() - began)
            else:
                failed.append(title)
            busy = 0
        except Busy as error:
            if again:  # whether the other call's run is an earlier one nobody knows
                raise
            if id(each) not in told:
                print(error, file=sys.stderr)
            queue.append((out, each))
            busy += 1
        told.add(id(each))
        if busy >= len(queue) > 0:  # all that is left
            time.sleep(BUSY_SECONDS)
        if after is not None and time.monotonic() - shown[out] > AFTER_SECONDS:
            after(out)
            shown[out] = time.monotonic()
    return list(dict.fromkeys(failed))


def refuse_not_positive(options: argparse.Namespace, *names: str) -> None:
    """UserError for an option among these that was given and is not positive."""
    for name in names:
        value = getattr(options, name)
        if value is not None and value <= 0:
            raise UserError(f"--{name}: must be positive, got {value:g}")


def _left(took: Mapping[Path, Sequence[float]], missing: Sequence[Path]) -> str:
    """In words, how long the cells of these folders will take; nothing before the first is made.

    A cell takes the median of its own folder's cells, or the median of all while its own has none.
    """
    made = [seconds for those in took.values() for seconds in those]
    usual = statistics.median(made) if made else 0.0
    counts = [(took[out], missing.count(out)) for out in dict.fromkeys(missing)]
    seconds = sum(count * (statistics.median(own) if own else usual) for own, count in counts)
    return f", about {in_words(seconds / 60)} left" if made else ""


def in_words(minutes: float) -> str:
    """A length of time, in minutes or hours."""
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def run(command: Command) -> int:
    """Run `command` in the repository and return its exit code; a signal that ends this process ends it first.

    Raises Interrupted then, after the command has saved its state: no run continues alone, into a folder that the
    next start would use too. What it prints is shown on a terminal, a line in place of the one before; of a command
    that fails the last lines are printed.
    """
    with Relay(), subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=ends_with_parent()
    ) as started:  # fmt: skip
        try:
            last = _follow(started.stdout or ())
            if started.wait():
                print(f"+ {shown(command)}", *last, sep="\n", file=sys.stderr, flush=True)
            return started.returncode
        except Interrupted as stop:
            # A terminal's Ctrl-C has reached it already, and twice means at once.
            if stop.exit_code != INTERRUPTED:
                started.terminate()
            elif not _in_foreground():
                started.send_signal(signal.SIGINT)
            started.wait()
            raise


def _in_foreground() -> bool:
    """Whether what is typed at a terminal reaches this process and those that it started."""
    try:
        with open("/dev/tty", "rb") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


def _follow(output: Iterable[bytes]) -> deque[str]:
    """Read to the end, and return the last lines."""
    last: deque[str] = deque(maxlen=LAST_LINES)
    terminal = sys.stderr.isatty()
    for line in output:
        last.append(line.decode(errors="replace").rstrip("\n"))
        if terminal:
            shown_part = last[-1][: shutil.get_terminal_size().columns - 3]
            print(f"{ANEW}  {shown_part}", end="", file=sys.stderr, flush=True)
    if terminal:
        print(ANEW, end="", file=sys.stderr, flush=True)
    return last


def attempt(command: Command, folder: Path, launch: Launch) -> bool:
    """Launch a training into `folder`; whether it left a result: a run to its end, or one that diverged.

    Its record decides. A method that diverges is a result. The exit code does not decide: train.py's is then 3, but a
    launcher may return another, and an interrupted training ends with 0.
    """
    if _status(folder) not in (None, "finished"):
        (folder / "record.json").unlink()  # of an earlier attempt: were it left, it would be taken for this one's
    code = launch(command)
    status = _status(folder)
    if status is None and code == 0:
        print(f"{folder}: has no record of what ended well; does rank 0's machine share it?", file=sys.stderr)
    return status == "diverged" or (status == "finished" and code == 0)


def _status(folder: Path) -> str | None:
    """How the run of `folder` ended; None where there is no record that can be read."""
    try:
        return str(schema.read(folder)["status"])
    except UserError:
        return None


def shown(command: Command) -> str:
    """The command as one types it in the repository."""
    if command[: len(WIREBENCH)] == WIREBENCH:
        command = ["wirebench", *command[len(WIREBENCH) :]]
    return shlex.join("python" if word == sys.executable else word for word in command)


def within(path: Path) -> str:
    """A file or folder as commands name it: from the repository's root where it lies there."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
