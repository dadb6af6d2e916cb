"""The measured compositions for other programs: cell.json in each run's folder, and cells.csv with a line for each.

results/prediction/README.md explains every field. Of our predictions a cell has three: by the run's own steps, from
outside, and the one that was signed before the run.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from papers.prediction.measured import Predicted
from papers.prediction.outside import Outside
from papers.prediction.signed import Signed
from papers.runner import within
from wirebench.cluster.network import head_start_seconds
from wirebench.record import notes
from wirebench.simulation import trace
from wirebench.topology.rates import parse_rate

VERSION = 1
FILE, TABLE = "cell.json", "cells.csv"
Cell = dict[str, Any]


def files(folder: Path, runs: Sequence[Predicted], outside: Outside | None, before: Signed | None) -> dict[str, str]:
    """Their texts by name within `folder`: of its runs on emulated clusters of one rank a host; none where none is."""
    noted = {each.name: note for each in runs if (note := _note(folder, each)) is not None}
    cells = [cell(each, noted[each.name], outside, before) for each in runs if each.name in noted]
    texts = {f"{each['run']}/{FILE}": json.dumps(each, indent=1) + "\n" for each in cells}
    return texts | ({TABLE: _table(cells)} if cells else {})


def cell(run: Predicted, note: Mapping[str, Any], outside: Outside | None, before: Signed | None) -> Cell:
    """The cell of a run. note: its hosts, link and launch"""
    record = run.record
    config, environment = record["config"], record["environment"]
    return {
        "version": VERSION,
        "run": run.name,
        "composition": {key: config[key] for key in ("scheduler", "compressor", "collective") if key in config},
        "model": _model(record),
        "cluster": _cluster(record, note),
        "machine": {
            "cpu": run.run.has("environment", "cpu", "model"),
            "cores": run.run.has("environment", "cpu", "cores"),
            "threads_per_rank": environment.get("threads_per_process"),
            "others_cores": _most(record, "others_cores"),
            "steal": _most(record, "steal"),
        },
        "measured": _measured(run),
        "predicted": _predicted(run, outside, before),
        "made": {
            "launch": note.get("launch"),
            "commit": run.run.has("environment", "git", "commit"),
            "utc": environment.get("utc"),
        },
    }


def _note(folder: Path, run: Predicted) -> dict[str, Any] | None:
    path = run.run.folder / notes.NOTE
    if path.parent.parent != folder or not path.is_file():
        return None
    note = notes.note(path, {})
    return note if "hosts" in note and "link" in note else None


def _model(record: Mapping[str, Any]) -> Cell:
    config = record["config"]
    name = config["model"].get("trace")
    return {
        "trace": None if name is None else within(trace.find(name)),
        "parameters": record["parameters"],
        "batch_size": config.get("data", {}).get("batch_size"),
        "dilation": config.get("network", {}).get("dilation"),
    }


def _cluster(record: Mapping[str, Any], note: Mapping[str, Any]) -> Cell:
    rate = parse_rate(note["link"])
    return {
        "hosts": note["hosts"],
        "ranks": record["world_size"],
        "link_bits_per_second": rate,
        "burst_bytes": round(head_start_seconds(rate / 8) * rate / 8),
    }


def _most(record: Mapping[str, Any], key: str) -> float | None:
    """The largest value among the run's machines."""
    known = [each[key] for each in record.get("load") or () if each.get(key) is not None]
    return _short(max(known)) if known else None


def _measured(run: Predicted) -> Cell:
    steps, phases, sizes = (run.record[key] for key in ("step_seconds", "phases", "bytes_per_step"))
    return {
        **{f"step_seconds_{key}": _short(steps[key]) for key in ("median", "p10", "p90")},
        "steps": run.record["images_per_second"]["steps"],
        "repeats_to": _short(run.repeats),
        "data_seconds": _short(phases["data"]),
        "update_seconds": _short(phases["update"]),
        "messages": run.found["messages"],
        "payload_bytes": sizes["payload"],
        "wire_bytes": sizes["wire"],
    }


def _predicted(run: Predicted, outside: Outside | None, before: Signed | None) -> Cell:
    own = run.found["step_seconds"]
    found: Cell = {"own_steps": {"seconds": _short(own), "error": _short(run.error)}}
    if outside is not None and run.name in outside.seconds:
        seconds, fitted = outside.seconds[run.name]
        found["outside"] = {
            "seconds": _short(seconds), "error": _short(seconds / run.seconds - 1), "held_out": not fitted
        }  # fmt: skip
    if before is not None and run.name in before.steps:
        step = before.steps[run.name]
        found["before"] = {
            **{key: _short(step[key]) for key in ("seconds", "low", "high")},
            "error": _short(step["seconds"] / run.seconds - 1),
            "commit": before.commit, "utc": before.utc, "constants": before.fitted_to,
        }  # fmt: skip
    return found


def _table(cells: Sequence[Cell]) -> str:
    """cells.csv; times in milliseconds."""
    rows = [_row(each) for each in cells]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(cell: Cell) -> Cell:
    """A line of the table. What was signed before a run is ours; else what was simulated from outside is."""
    measured, ours = cell["measured"], cell["predicted"].get("before") or cell["predicted"].get("outside")
    held_out = None if ours is None else ours.get("held_out", True)
    return {
        "run": cell["run"],
        "hosts": cell["cluster"]["hosts"],
        "link_mbit": f"{cell['cluster']['link_bits_per_second'] / 1e6:g}",
        **{kind: each.get("name") for kind, each in cell["composition"].items()},
        "messages": measured["messages"],
        **{f"measured_{key}_ms": _ms(measured[f"step_seconds_{key}"]) for key in ("median", "p10", "p90")},
        "steps": measured["steps"],
        "repeats_to": measured["repeats_to"],
        "ours_ms": None if ours is None else _ms(ours["seconds"]),
        "held_out": None if held_out is None else "yes" if held_out else "no",
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else _short(1e3 * seconds)


def _short(value: float | None) -> float | None:
    """Six digits."""
    return None if value is None else float(f"{value:.6g}")
