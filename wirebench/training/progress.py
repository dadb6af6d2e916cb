"""Progress of a run for the user: a live line on a terminal, plain lines anywhere else."""

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as LiveLine

from wirebench.record import compare
from wirebench.utils.terminal import tell_of_loss

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Shows steps and epochs on standard output.

    On a terminal one line is redrawn in place, twice a second; elsewhere (a launcher that captures output, CI, a file)
    a plain ASCII line is printed at most every 5 seconds and at each epoch's end. `unit` is what a batch has.
    """

    def __init__(
        self, unit: str = "images", console: Console | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._unit = unit
        self._console = console or Console(highlight=False)
        self._now = now
        self._live: LiveLine | None = None
        self._task = TaskID(0)
        self._text = ""
        self._total_steps = self._first_step = 0
        self._began = self._printed = now()

    def start(self, total_steps: int, first_step: int) -> None:
        """Begin to show steps first_step (from 0) to total_steps - 1."""
        if not self._console.quiet:
            tell_of_loss()
        self._total_steps, self._first_step = total_steps, first_step
        self._began = self._printed = self._now()
        if self._on_terminal():
            self._live = _live_line(self._console)
            self._task = self._live.add_task("", total=total_steps, completed=first_step, epoch="-", text="")
            self._live.start()

    def step(
        self, step: int, epoch: int, images_per_second: float, loss: float, wire_megabytes_per_second: float
    ) -> None:
        """Show that step `step` (from 0) is done, with the world's throughput and one rank's mean traffic."""
        done, now = step + 1, self._now()
        text = (
            f"{images_per_second:.4g} {self._unit}/s  loss {loss:.4f}  mean wire {wire_megabytes_per_second:.3g} MB/s  "
            f"ETA {self._remaining(done, now)}"
        )
        if self._live is not None:
            self._text = text
            self._live.update(self._task, completed=done, epoch=str(epoch), text=text)
        elif now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            self._print(f"epoch {epoch}  step {done}/{self._total_steps}  {text}")

    def evaluation(self, done: int, batches: int) -> None:
        """Show that `done` of the test set's `batches` in this process are evaluated."""
        text, now = f"evaluating  {done} of {batches} batches", self._now()
        if self._live is not None:
            self._live.update(self._task, text=text)
        elif now - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = now
            self._print(text)

    def epoch(self, epoch: int, loss: float, top1: float | None, seconds: float) -> None:
        """Print the line of a finished epoch; top1 is None where it was not evaluated."""
        if self._live is not None:
            self._live.update(self._task, text=self._text)
        accuracy = "" if top1 is None else f"  top1 {top1:.4g}"
        self._print(f"epoch {epoch} done  loss {loss:.4f}{accuracy}  {seconds:.1f} s")

    def note(self, text: str) -> None:
        """Print a line of its own."""
        self._print(text)

    def result(self, record: dict[str, Any]) -> None:
        """Print the table of the run's own record, and remarks on it."""
        if self._console.quiet:
            return  # this rank's record is a part of it
        self._console.print(compare.table([record]), soft_wrap=not self._on_terminal())
        for line in compare.remarks(record):
            self._print(line)

    def close(self) -> None:
        """Leave the terminal as it was; may be called again."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _on_terminal(self) -> bool:
        # Asked of the stream: rich's own answer can be forced by the environment, and plain lines must stay plain.
        return self._console.file.isatty() and not (self._console.is_dumb_terminal or self._console.quiet)

    def _remaining(self, done: int, now: float) -> str:
        """Time to go at the pace so far, evaluation and checkpoints included."""
        seconds = (now - self._began) / max(done - self._first_step, 1) * max(self._total_steps - done, 0)
        return str(timedelta(seconds=round(seconds)))

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)


def silent() -> Progress:
    """Progress that shows nothing: of every rank but 0."""
    return Progress(console=Console(quiet=True))


def _live_line(console: Console) -> LiveLine:
    return LiveLine(
        TextColumn("epoch {task.fields[epoch]}", style="bold"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        console=console,
        refresh_per_second=2,
        expand=True,
    )
