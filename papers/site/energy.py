"""The table of what GPUs took: a line for each committed record that has any, whichever study it is of."""

from pathlib import Path

from papers.committed import runs_of
from wirebench.record import compare
from wirebench.record.gpu_use import gpu_use
from wirebench.record.notes import NotedRun

HEAD = ("run", "compressor", "scheduler", "GPU", "joules/sample", "joules/point of top1", "sampling")


def lines(results: Path) -> list[tuple[str, ...]]:
    """Cells by HEAD, in order of the runs' paths; runs that are not committed (results/runs) are left out."""
    return [_cells(run, results) for run in runs_of(results) if gpu_use(run.record) is not None]


def _cells(run: NotedRun, results: Path) -> tuple[str, ...]:
    rows = compare.rows(run.record)
    name = run.folder.relative_to(results).as_posix()
    return (name, *(rows[name] for name in HEAD[1:-1]), rows.get("GPU sampling", compare.MISSING))
