"""The table of what GPUs took: a line for each committed record that has any, whichever study it is of."""

import os
from pathlib import Path
from typing import NamedTuple

from wirebench.record import compare, schema
from wirebench.record.gpu_use import gpu_use

HEAD = ("run", "compressor", "scheduler", "GPU", "joules/sample", "joules/point of top1", "sampling")
NO_GPU = '"gpu": null'
"""In the text of most records, which need not be read then."""


class Line(NamedTuple):
    """A record: what it is called, where it lies, and its cells."""

    name: str
    href: str
    cells: tuple[str, ...]


def lines(results: Path, beside: Path) -> list[Line]:
    """In order of their paths; runs that are not committed (results/runs) are left out.

    beside  folder of the page: links lead from there
    """
    paths = (path for path in results.glob("*/**/record.json") if path.relative_to(results).parts[0] != "runs")
    found = [path for path in sorted(paths) if NO_GPU not in path.read_text(encoding="utf-8")]
    return [line for path in found if (line := _line(path, results, beside)) is not None]


def _line(path: Path, results: Path, beside: Path) -> Line | None:
    record = schema.read(path)
    if gpu_use(record) is None:
        return None
    rows = compare.rows(record)
    cells = [rows[name] for name in HEAD[1:-1]]
    name = path.parent.relative_to(results).as_posix()
    href = os.path.relpath(path.resolve(), beside.resolve())
    return Line(name, href, (*cells, rows.get("GPU sampling", compare.MISSING)))
