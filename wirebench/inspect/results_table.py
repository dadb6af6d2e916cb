"""The table of the recorded results, as Markdown, and what it says of a record's machine."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wirebench.errors import UserError
from wirebench.record import compare, recorded
from wirebench.record.notes import NotedRun

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
EMPTY = "No result is recorded yet."
BITS = "bits per byte"
IMAGES, SAMPLES = "images/s [p10 - p90]", "samples/s [p10 - p90]"
COLUMNS = {
    "engine": "engine",
    "model": "model",
    "compressor": "compressor",
    "scheduler": "scheduler",
    "collective": "collective",
    IMAGES: IMAGES,
    "step ms [p10 - p90]": "step ms [p10 - p90]",
    "wire bytes/step": "wire bytes/step",
    "ratio wire": "ratio",
    "top1": "top1",
}
"""Labels of compare.rows, and the heads of their columns."""
GPU_COLUMNS = {"GPU": "GPU", "joules/sample": "joules/sample", "joules/point of top1": "joules/point of top1"}
"""Labels and heads of the columns for records with a GPU; a table without such a record lacks them."""


def table(results: Path, base: Path) -> str:
    """All records below `results` as a Markdown table, in order of their paths; links are relative to `base`.

    What lies in results/runs is no result: every run writes there. What lies below a folder with a table.md stands in
    that table. Raises UserError, naming it, for a damaged record, and for a folder that is not there.
    """
    if not results.is_dir():
        raise UserError(f"--results: {results}: no such folder")
    told = {path.parent for path in results.glob("**/table.md")}
    runs = [
        run
        for run in recorded.below(results)
        if run.folder.relative_to(results).parts[:1] not in ((), ("runs",)) and told.isdisjoint(run.folder.parents)
    ]
    return of_runs(runs, base) if runs else EMPTY


def of_folders(folders: Sequence[Path], base: Path) -> str:
    """All records of these folders and below them; UserError for a folder that has none."""
    runs: dict[Path, NotedRun] = {}
    for folder in folders:
        found = recorded.below(folder)
        if not found:
            raise UserError(f"{folder}: has no record.json, nor has a folder below it")
        runs.update({run.folder: run for run in found})
    return of_runs(list(runs.values()), base)


def of_runs(runs: Sequence[NotedRun], base: Path) -> str:
    """The table of these runs, in this order."""
    columns = COLUMNS | (GPU_COLUMNS if any(run.record["gpu"] for run in runs) else {})
    heads = ["run", "machine", *columns.values()]
    lines = [heads, ["---"] * len(heads), *(_row(run, base, columns) for run in runs)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def machine(record: compare.Record) -> str:
    """The hardware that a record was measured on, from its environment: the GPUs or the cores of rank 0's host."""
    environment: dict[str, Any] = record["environment"]
    gpus, cpu = environment.get("gpus") or [], environment.get("cpu") or {}
    if record["device"] == "cuda" and gpus:
        kinds = dict.fromkeys(gpus)
        device = ", ".join(f"{gpus.count(kind)} x {kind}" for kind in kinds)
    else:
        device = f"{cpu.get('model') or 'unknown CPU'}, {cpu.get('cores') or '?'} cores"
    hosts = {str(peer).rpartition(" on ")[2] for peer in environment.get("peers", [])}
    return device if len(hosts) < 2 else f"{len(hosts)} hosts, each {device}"


def _row(run: NotedRun, base: Path, columns: Mapping[str, str]) -> list[str]:
    record = run.record
    # What a config expects is for who runs it; here stands what was measured.
    rows = compare.rows({**record, "config": {**record["config"], "expected": {}}})
    status = "" if record["status"] == "finished" else f" ({record['status']})"
    file = recorded.file_of(run.folder).resolve()
    link = Path(os.path.relpath(file, base.resolve())).as_posix().replace(" ", "%20")
    name = f"[{_cell(str(record['config'].get('name', run.folder.name)))}]({link}){status}"
    rows[IMAGES] = rows.get(IMAGES) or f"{rows[SAMPLES]} (samples)"
    if rows.get(BITS):
        rows["top1"] = f"{rows[BITS]} {BITS}"
    return [name, _cell(machine(record)), *(_cell(rows.get(label, compare.MISSING)) for label in columns)]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
