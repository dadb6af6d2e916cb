"""wirebench show: runs side by side, and one line for what is not a run."""

import copy
import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from tests.cli.verbs import ROOT, run
from tests.golden import check
from tests.record.gpus import RANK_0, all_ranks, device
from wirebench.cli.results import show as script
from wirebench.record import compare
from wirebench.telemetry.step_stats import PHASES

RECORD: dict[str, Any] = {
    "schema": 1,
    "status": "finished",
    "config": {
        "name": "ring",
        "model": {"name": "resnet_cifar", "depth": 20},
        "data": {"name": "digits", "root": "", "batch_size": 32},
        "compressor": {"name": "topk", "dense_below": 0, "warmup": [], "density": 0.01},
        "scheduler": {"name": "mg_wfbp"},
        "collective": {"name": "ring"},
        "expected": {"top1": 0.9, "images_per_second": 1500.0, "seconds": 0.0, "machine": "m"},
    },
    "environment": {},
    "engine": "torch",
    "device": "cpu",
    "world_size": 4,
    "parameters": 10,
    "images_per_second": {"median": 1234.5, "mean": 1200.0, "p10": 1100.0, "p90": 1300.0, "steps": 9},
    "step_seconds": {"median": 0.1037, "p10": 0.09, "p90": 0.11},
    "phases": {name: 0.001 * (i + 1) for i, name in enumerate(PHASES)},
    "bytes_per_step": {"payload": 1_080_000, "dense": 1_080_000, "wire": 1_620_000.0, "nic": None},
    "compression_ratio": {"values": 100.0, "with_indices": 50.0, "wire": 37.5},
    "requests": [{"kind": "sum", "plan": "ring", "rounds": 6, "bytes": 40}],
    "history": [],
    "final": {"loss": 0.25, "top1": 0.8765},
    "seconds_total": 12.0,
    "gpu": None,
}


def show(*arguments, cwd=ROOT):
    return run("show", *arguments, cwd=cwd)


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "results" / "runs"
    other = copy.deepcopy(RECORD)
    other["config"]["name"] = "tree"
    other["status"] = "diverged"
    other["images_per_second"] = {"median": None, "mean": None, "p10": None, "p90": None, "steps": 0}
    for age, record in enumerate([RECORD, other]):
        path = folder / record["config"]["name"] / "record.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record))
        os.utime(path, (1000 + age, 1000 + age))
    return folder


HEALTH = {
    "health/compression_error": 0.5,
    "health/residual_share": 0.25,
    "health/residual_norm": 9.0,
    "compressor/density": 0.01,
    "compressor/importance_mean/conv1.weight": 3.0,
}
LOST = device(
    "b", 1, problem="NVML failed: lost", utilisation_percent={"mean": None, "max": None}, memory_mb={"max": None}
)
NO_TOTALS = dict.fromkeys(("power_watts", "energy_joules", "energy_source", "joules_per_sample", "joules_per_point"))
NO_SAMPLING = dict.fromkeys(("interval_seconds", "samples_per_second", "seconds_per_sample", "share_of_time"))
SIZES, RATIOS = RECORD["bytes_per_step"], RECORD["compression_ratio"]
OLD = {"config.data": {"batch_size": 5}, "steps_done": 100, "gpu": RANK_0}
CHANGED: dict[str, dict[str, Any]] = {
    "a record": {},
    "wrapped": {"config.compressor": {"name": "none", "dense_below": 64, "warmup": [0.25]}},
    "another optimizer": {"config.optimizer": {"name": "muon", "lr": 0.002}},
    "readings, which are means": {"health": {name: {"last": 7.0, "mean": mean} for name, mean in HEALTH.items()}},
    "the last step has a ratio of its own": {"compression_ratio": {**RATIOS, "wire_last_step": 80.0}},
    "local steps: the median step exchanges nothing": {
        "config.scheduler": {"name": "outer", "every": 30}, "samples": {"unit": "samples", "tokens": 10},
    },
    "the interface carried as much": {
        "compression_ratio": {**RATIOS, "nic": 20.0}, "bytes_per_step": {**SIZES, "nic": 3e6},
    },
    "the interface carried twice as much": {"bytes_per_step": {**SIZES, "nic": 3_240_000}},
    "a machine that was hardly busy": {"load": [{"hostname": "vm", "cores": 2, "others_cores": 0.3}]},
    "a busy machine": {"load": [{"hostname": "vm", "cores": 2, "others_cores": 0.31}]},
    "GPUs of all ranks": {"gpu": all_ranks()},
    "both sources of energy": {"gpu": all_ranks(energy_source="counter and power")},
    "ranks whose GPUs are missing": {"gpu": all_ranks(ranks_missing=[1, 2, 3], power_watts=None)},
    "a rank without a GPU": {"gpu": all_ranks(ranks_without_gpu=[2])},
    "GPUs that ranks share": {"gpu": all_ranks(devices=[device("a", 0, 1), device("b", 2, 4)])},
    "a GPU that says nothing": {"gpu": all_ranks(device("a", 0), LOST, **NO_TOTALS)},
    "no sampling": {"gpu": all_ranks(sampling=NO_SAMPLING)},
    "an older record, with the GPU of rank 0 alone: by its samples": OLD,
    "older, virtual workers, which share it": {**OLD, "engine": "local"},
    "older, resumed: by the steps since then": {**OLD, "engine": "local", "resumed_at": 50},
    "older, without a step": {**OLD, "engine": "local", "steps_done": 0},
}  # fmt: skip


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The record with these fields, or sections of its config."""
    record = copy.deepcopy(RECORD)
    for name, value in changes.items():
        (record["config"] if name.startswith("config.") else record)[name.removeprefix("config.")] = value
    return record


def test_the_rows_and_remarks_of_records(request: pytest.FixtureRequest):
    """Of each the rows that the plain one does not have, those without --all with a star."""
    lines: list[str] = []
    plain: dict[str, str] = {}
    for name, changes in CHANGED.items():
        rows = compare.rows(changed(changes))
        new = {label: text for label, text in rows.items() if plain.get(label) != text}
        stars = {label: "*" if label in compare.MAIN else " " for label in new}
        lines += ["", f"# {name}", *(f"{stars[label]} {label:26} {text}".rstrip() for label, text in new.items())]
        lines += [f"! {remark}" for remark in compare.remarks(changed(changes))]
        plain = plain or rows
    check("show/records", "\n".join(lines[1:]) + "\n", request.config.getoption("update"))


def lines_of(text):
    """The words of each line of a table, by its label; its head by ''."""
    head, *body = (re.split(r"  +", line.strip()) for line in text.splitlines())
    return {"": head, **{label: values for label, *values in body}}


def test_runs_stand_side_by_side(runs):
    done = show(runs / "ring", runs / "tree" / "record.json")
    assert (done.returncode, done.stderr) == (0, "")
    lines = lines_of(done.stdout)
    assert lines[""] == ["ring", "tree"]
    assert lines["images/s [p10 - p90]"] == ["1,234 [1,100 - 1,300] (expected 1,500)", "- (expected 1,500)"]
    assert lines["status"] == ["finished", "diverged"]


def test_a_good_run_is_ten_lines_and_the_rest_is_asked_for(runs, capsys):
    plain = {**RECORD["config"], "collective": {"name": "native"}}
    (runs / "ring" / "record.json").write_text(json.dumps({**RECORD, "config": plain}))
    assert script.main([str(runs / "ring")]) == 0
    few = lines_of(capsys.readouterr().out)
    assert script.main([str(runs / "ring"), "--all"]) == 0
    every = lines_of(capsys.readouterr().out)
    assert len(few) == 1 + 10 and few.items() <= every.items()
    assert {"status", "data", "loss", "payload bytes/step"} <= every.keys() - few.keys()
    assert every.keys() - {""} == {label.strip() for label in compare.rows(RECORD)}


def test_runs_of_one_name_are_told_apart_by_their_folders(runs, capsys):
    for name in ("ring", "tree"):
        (runs / name / "record.json").write_text(json.dumps({**RECORD, "warnings": ["[red]slow"]}))
    assert script.main([str(runs / "ring"), str(runs / "tree" / "record.json")]) == 0
    said = capsys.readouterr().out
    assert lines_of(said)[""] == ["ring", "tree"]
    assert said.splitlines()[-2:] == ["ring: warning: [red]slow", "tree: warning: [red]slow"]


def test_latest_is_the_run_that_ended_last(runs):
    (runs / "still-running").mkdir()
    done = show("--latest", "--json", cwd=runs.parents[1])
    assert [record["config"]["name"] for record in json.loads(done.stdout)] == ["tree"]


def test_a_folder_of_runs_is_told_from_a_run(runs):
    done = show(str(runs.parent))
    assert done.returncode == 2 and "no such file; there are runs below, such as " in done.stderr


def test_reading_records_needs_no_torch():
    code = "import sys; from wirebench.record import compare, schema, writer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
