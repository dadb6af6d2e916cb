"""Columns on the GPUs' energy, for tables of runs that have any: a table of CPU runs does not change."""

import statistics
from collections.abc import Sequence

from papers.rows import Row
from wirebench.record.gpu_use import gpu_use

HEAD = ("joules per sample", "joules per point of top-1")


def with_energy(
    head: Sequence[str], cells: Sequence[Sequence[str]], rows: Sequence[Row]
) -> tuple[tuple[str, ...], list[list[str]]]:
    """A table's head and cells, a line for each of `rows`, with HEAD's columns where a run has a GPU.

    Numbers are means over a row's runs. A run of which only rank 0's GPU was sampled is marked.
    """
    told = [_cells(row) for row in rows]
    if not any(told):
        return tuple(head), [list(line) for line in cells]
    lines = [[*line, *(more or ["-"] * len(HEAD))] for line, more in zip(cells, told, strict=True)]
    return (*head, *HEAD), lines


def _cells(row: Row) -> list[str]:
    """[] for a row without a GPU."""
    uses = [use for use in (gpu_use(run.record) for run in row.runs) if use is not None]
    if not uses:
        return []
    partly = dict.fromkeys(use.partly for use in uses if use.partly)
    mark = f" ({', '.join(partly)})" if partly else ""
    values = ([use.per_sample for use in uses], [use.per_point for use in uses])
    return [_mean(each, mark) for each in values]


def _mean(values: Sequence[float | None], mark: str) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.mean(known):.4g}{mark}" if known else "-"
