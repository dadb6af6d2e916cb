"""Runs and forecasts of the planner's study, made up for tests."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from papers.planner import forecast
from papers.planner.forecast import ClusterComposition, Expected, Forecast
from tests.flexreduce import run_record
from tests.papers.records import write

UTC = "2026-01-02T00:00:00+00:00"
"""When forecasts were made; runs begin a day later."""
BEGAN = "2026-01-03T00:00:00+00:00"
USUAL = ClusterComposition(4, "1gbit", "wfbp", "none", "ring")


def record(seconds: float, composed: ClusterComposition = USUAL) -> dict[str, Any]:
    """A replayed run whose median step took so long."""
    made = run_record("2+2")
    made["world_size"] = composed.hosts
    made["environment"]["utc"] = BEGAN
    made["config"] |= {
        "model": {"name": "replay", "trace": "resnet20_gtx1080ti"},
        "scheduler": {"name": composed.scheduler, "profile": ""},
        "compressor": {"name": composed.compressor, "dense_below": 0, "warmup": []},
        "collective": {"name": composed.collective}, "network": {"dilation": 4.0},
    }  # fmt: skip
    batch = made["config"]["data"]["batch_size"]
    made["step_seconds"] = {"median": seconds, "p10": 0.9 * seconds, "p90": 1.2 * seconds}
    made["images_per_second"] |= {"mean": composed.hosts * batch / seconds}
    made["phases"] = {name: 0.01 for name in made["phases"]}
    return made


def predicted(seconds: float, own: float, **composed: Any) -> dict[str, Any]:
    """A run with a prediction of its own step."""
    made = record(seconds, USUAL._replace(**composed))
    made["prediction"] = {"step_seconds": own, "measured_seconds": seconds, "error": own / seconds - 1,
                          "exposed_seconds": 0.1, "messages": 9}  # fmt: skip
    return made


def put(folder: Path, name: str, made: Mapping[str, Any], **note: Any) -> Path:
    """A run of this name."""
    usual = {"label": name, "hosts": made["world_size"], "link": "1gbit"}
    return write(folder / name, made, **{**usual, **note})


def change(place: Path, *keys: str, value: Any) -> None:
    """Another value in a run's record."""
    made = table = json.loads((place / "record.json").read_text())
    for key in keys[:-1]:
        table = table[key]
    table[keys[-1]] = value
    (place / "record.json").write_text(json.dumps(made))


def save(folder: Path, kind: str, rows: Iterable[Expected], **about: Any) -> Forecast:
    """A forecast by a known commit, before the runs."""
    usual = {"constants": "results/prediction/outside.json", "commit": "c0ffee" * 7, "utc": UTC}
    made = Forecast(kind, tuple(rows), **{**usual, **about})
    folder.mkdir(parents=True, exist_ok=True)
    forecast.save(folder, made)
    return made


def table(text: str, head: str) -> dict[str, dict[str, str]]:
    """The rows of the table that has this column first or second, by their cell of it."""
    lines = text[text.rindex("\n\n", 0, text.index(f"| {head} |")) :].strip().partition("\n\n")[0].splitlines()
    heads, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    cells = (dict(zip(heads, row, strict=True)) for row in rows)
    return {row[head]: row for row in cells}
