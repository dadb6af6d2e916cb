"""A run under way, or one that was killed: what its folder says before there is a record."""

import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.errors import UserError
from wirebench.profiling.profile_files import LAYERS
from wirebench.simulation import trace
from wirebench.telemetry.step_stats import PHASES
from wirebench.utils.parsing import json_of, toml_of

STEPS = "steps.jsonl"
SILENT_SECONDS, SILENT_STEPS = 60.0, 20
"""A run that logs nothing for this time, and for the time of this many of its steps, may have been killed."""


class UnderWay(NamedTuple):
    """How far a run has come.

    steps        that are logged, and how many of them are counted; `total`: of the whole run, None if not known yet
    age_seconds  since the last one was logged
    silent       for so long that it may have been killed
    """

    steps: int
    counted: int
    total: int | None
    age_seconds: float
    silent: bool


def started(folder: Path) -> bool:
    """Whether a run has begun there whose record is not written."""
    return folder.is_dir() and (folder / "config.toml").exists() and not (folder / "record.json").exists()


def read(folder: Path) -> tuple[dict[str, Any], UnderWay]:
    """A stand-in for the record of a run under way: the fields known so far. UserError before its first step.

    The means are over the counted steps, or over all steps if none is counted yet.
    """
    lines = _steps(folder / STEPS)
    if not lines:
        raise UserError(f"{folder}: this run has begun, and no step of it is logged yet")
    config = toml_of((folder / "config.toml").read_text(encoding="utf-8"))
    counted = [line for line in lines if line["counted"]]
    used = counted or lines
    step = statistics.median(line["seconds"] for line in used)
    record = {
        "config": config,
        "environment": {},
        "engine": config["engine"]["name"],
        "device": config["engine"]["device"],
        "world_size": config["engine"]["workers"],
        "step_seconds": {"median": step},
        "phases": {name: statistics.fmean(line["phases"][name] for line in used) for name in PHASES},
        "bytes_per_step": {"dense": _dense(folder), "wire": statistics.fmean(line["wire_bytes"] for line in used)},
        "requests": [],
    }
    age = max(time.time() - (folder / STEPS).stat().st_mtime, 0.0)
    silent = age > max(SILENT_SECONDS, SILENT_STEPS * step)
    return record, UnderWay(len(lines), len(counted), config["train"]["max_steps"] or None, age, silent)


def _steps(path: Path) -> list[dict[str, Any]]:
    """The lines that are whole: the run may be writing the last one."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    try:
        return [json_of(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error


def _dense(folder: Path) -> int | None:
    """Bytes of the gradient in fp32, where this run, and no earlier one in its folder, has measured its layers."""
    path = folder / LAYERS
    if not path.exists() or path.stat().st_mtime < (folder / "config.toml").stat().st_mtime:
        return None
    return 4 * trace.load(path).numel
