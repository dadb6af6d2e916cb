"""results/index.csv.gz: what was measured, a line a run, for other programs: `pandas.read_csv("results/index.csv.gz")`.

  run      path of the run below results/, which begins with the study's folder; `wirebench show results/RUN` prints
           all of it
  machine  the processor, with its cores; of a run on GPUs the GPUs
  commit   the code's, ten digits
  seed     of the run
  flags    rules of trust that the run breaks by itself, divided by a space

METRICS are columns, too, empty where a record has no such number.
"""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from papers.committed import runs_of
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.inspect.results_table import machine
from wirebench.record.notes import NotedRun
from wirebench.record.rules import broken
from wirebench.utils import user_files

FILE = RESULTS / "index.csv.gz"
HEAD = ("run", "machine", "commit", "seed", "flags")


def _at(*path: str) -> Callable[[NotedRun], Any]:
    return lambda run: run.has(*path)


METRICS: Mapping[str, Callable[[NotedRun], Any]] = {
    "step_seconds": _at("step_seconds", "median"),
    "exposed_seconds": _at("phases", "exchange_exposed"),
    "wire_bytes_per_step": _at("bytes_per_step", "wire_mean"),
    "predicted_step_seconds": _at("prediction", "step_seconds"),
    "top1": lambda run: run.has("final", "top1") if run.is_whole else None,
    "test_loss": lambda run: run.has("final", "loss") if run.is_whole else None,
}
"""Numbers of a record by their names: seconds and bytes of a step are medians and means over its counted steps."""


def is_current() -> bool:
    """Whether the committed file has the numbers of the records."""
    try:
        return FILE.is_file() and user_files.read(FILE) == text()
    except UserError:  # a damaged file is written anew
        return False


def text(results: Path = RESULTS) -> str:
    """The whole file."""
    written = io.StringIO()
    lines = csv.writer(written, lineterminator="\n")
    lines.writerow((*HEAD, *METRICS))
    lines.writerows(_line(run, results) for run in runs_of(results))
    return written.getvalue()


def _line(run: NotedRun, results: Path) -> tuple[Any, ...]:
    path = run.folder.relative_to(results)
    flags = " ".join(dict.fromkeys(each.rule.replace(" ", "_") for each in broken(run.record)))
    about = path.as_posix(), machine(run.record), run.commit, run.has("config", "train", "seed"), flags
    values = (of(run) for of in METRICS.values())
    return (*about, *("" if value is None else f"{value:.6g}" for value in values))
