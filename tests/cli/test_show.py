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
from tests.record.gpus import RANK_0, all_ranks, device
from wirebench.cli.results import show as script
from wirebench.record import compare, recorded
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


def test_rows_of_a_record():
    rows = compare.rows(RECORD)
    assert rows["engine"] == "torch x 4 (cpu)"
    assert rows["model"] == "resnet_cifar depth=20"
    assert rows["compressor"] == "topk density=0.01"
    wrapped = {**RECORD["config"], "compressor": {"name": "none", "dense_below": 64, "warmup": [0.25]}}
    assert compare.rows({**RECORD, "config": wrapped})["compressor"] == "none dense_below=64 warmup=[0.25]"
    assert rows["data"] == "digits, batch 32"
    assert rows["images/s [p10 - p90]"] == "1,234 [1,100 - 1,300] (expected 1,500)"
    assert rows["step ms [p10 - p90]"] == "103.70 [90.00 - 110.00]"
    assert rows["  exchange_exposed"] == "5.00"
    assert rows["payload bytes/step"] == "1.08 MB"
    assert rows["nic bytes/step"] == "-"
    assert rows["ratio with indices"] == "50x"
    assert rows["top1"] == "0.8765 (expected 0.9)"
    assert rows["seconds"] == "12.0"


READINGS = {
    "health/compression_error": 0.5,
    "health/residual_share": 0.25,
    "health/residual_norm": 9.0,
    "compressor/density": 0.01,
    "compressor/importance_mean/conv1.weight": 3.0,
}


def test_readings_stand_under_a_heading_that_says_they_are_means():
    health = {name: {"last": 7.0, "mean": mean} for name, mean in READINGS.items()}
    rows = list(compare.rows({**RECORD, "health": health}).items())
    begin = rows.index(("health, means", ""))
    assert rows[begin + 1 : begin + 5] == [
        ("  compression error", "0.5"),
        ("  residual share", "0.25"),
        ("  density", "0.01"),
        ("top1", "0.8765 (expected 0.9)"),
    ]
    assert "health, means" not in compare.rows(RECORD)


def test_the_last_steps_ratio_stands_beside_the_others():
    ratios = {**RECORD["compression_ratio"], "wire_last_step": 80.0}
    assert compare.rows({**RECORD, "compression_ratio": ratios})["ratio wire, last step"] == "80x"


def test_local_steps_have_the_rate_of_their_mean_step_too() -> None:
    """The median step exchanges nothing."""
    local = {**RECORD, "config": {**RECORD["config"], "scheduler": {"name": "outer", "every": 30}}}
    local |= {"samples": {"unit": "samples", "tokens": 10}}
    rows = compare.rows(local)
    assert rows["samples/s [p10 - p90]"].startswith("1,2") and rows["samples/s with exchanges"] == "1,200"
    assert rows["tokens/s"] == "12,000" and "samples/s with exchanges" in compare.MAIN
    assert "images/s with exchanges" not in compare.rows(RECORD)


def test_the_gpus_of_all_ranks_are_two_lines_and_what_sampling_them_took():
    assert not {"GPU", "joules/sample", "GPU sampling"} & compare.rows(RECORD).keys()
    rows = compare.rows({**RECORD, "gpu": all_ranks()})
    assert rows["GPU"] == "2 x NVIDIA H200: 800 W, 56 % busy, 16.99 GB"
    assert (rows["joules/sample"], rows["joules/point of top1"]) == ("1.5", "240")
    assert rows["  energy"] == "18,000 J (by the GPU's counter)"
    assert rows["  power"] == "800 W (at most 500 W of one)"
    assert rows["GPU sampling"] == "0.40 ms, 4.9 times a second: 0.20% of the time, on a thread beside training"
    assert {"GPU", "joules/sample", "GPU sampling"} <= set(compare.MAIN)
    both = compare.rows({**RECORD, "gpu": all_ranks(energy_source="counter and power")})
    assert both["  energy"].endswith("(by the GPU's counter and sampled power)")


@pytest.mark.parametrize(
    ("gpu", "line"),
    [
        ({"ranks_missing": [1, 2, 3], "power_watts": None}, "56 % busy, 16.99 GB (without the GPUs of ranks 1 to 3)"),
        ({"ranks_without_gpu": [2]}, "800 W, 56 % busy, 16.99 GB (rank 2 without a GPU)"),
        (
            {"devices": [device("a", 0, 1), device("b", 2, 4)]},
            "16.99 GB (shared by ranks 0 and 1 and by ranks 2 and 4)",
        ),
    ],
)
def test_whose_gpus_they_are_is_said(gpu, line):
    assert compare.rows({**RECORD, "gpu": all_ranks(**gpu)})["GPU"].endswith(line)


def test_what_a_gpu_does_not_say_is_a_dash_and_what_failed_a_remark():
    unknown = {"mean": None, "max": None}
    lost = device("b", 1, problem="NVML failed: lost", utilisation_percent=unknown, memory_mb={"max": None})
    totals = dict.fromkeys(("power_watts", "energy_joules", "energy_source", "joules_per_sample", "joules_per_point"))
    record = {**RECORD, "gpu": all_ranks(device("a", 0), lost, **totals)}
    rows = compare.rows(record)
    assert (rows["GPU"], rows["joules/sample"], rows["  energy"]) == ("2 x NVIDIA H200: 16.99 GB", "-", "-")
    assert "GPU of rank 1, NVIDIA H200: NVML failed: lost" in compare.remarks(record)
    sampling = dict.fromkeys(("interval_seconds", "samples_per_second", "seconds_per_sample", "share_of_time"))
    assert compare.rows({**RECORD, "gpu": all_ranks(sampling=sampling)})["GPU sampling"] == "-"


def test_an_older_record_has_the_gpu_of_rank_0():
    """Of a job that is one of several GPUs; virtual workers have no other."""
    config = {**RECORD["config"], "data": {"batch_size": 5}}
    old = {**RECORD, "config": config, "steps_done": 100, "gpu": RANK_0}
    rows = compare.rows(old)
    assert rows["GPU"] == "1 x NVIDIA H200: 387 W, 56 % busy, 16.99 GB (rank 0 only)"
    assert rows["joules/sample"] == "18 (rank 0 only)", "by the samples of rank 0"
    assert rows["joules/point of top1"] == "-"
    assert "GPU sampling" not in rows
    local = compare.rows({**old, "engine": "local", "world_size": 4})
    assert local["GPU"].endswith("(shared by ranks 0 to 3)")
    assert (local["joules/sample"], local["joules/point of top1"]) == ("4.5", f"{9000 / 87.65:.4g}")
    resumed = compare.rows({**old, "engine": "local", "resumed_at": 50})
    assert (resumed["joules/sample"], resumed["joules/point of top1"]) == ("9", "-"), "of the steps since then"
    assert compare.rows({**old, "engine": "local", "steps_done": 0})["joules/sample"] == "-"


def test_every_committed_record_of_a_gpu_shows_it():
    found = recorded.directly_below(ROOT / "results/h200/gpt_125m")
    assert len(found) >= 26
    for each in found:
        rows = compare.rows(each.record)
        assert rows["GPU"].startswith("1 x NVIDIA H200: ") and float(rows["joules/sample"]) > 0, each.folder


def test_a_busy_machine_and_an_optimizer_that_is_not_plain_are_told() -> None:
    load = {"hostname": "vm", "cores": 2, "others_cores": 0.31}
    [line] = [each for each in compare.remarks({**RECORD, "load": [load]}) if "busy" in each]
    assert line == "beside the run 0.31 of vm's 2 cores were busy with something else: compare no times of it"
    assert compare.remarks({**RECORD, "load": [{**load, "others_cores": 0.3}]}) == compare.remarks(RECORD)
    config = {**RECORD["config"], "optimizer": {"name": "muon", "lr": 0.002}}
    muon = {**RECORD, "config": config}
    assert compare.rows(muon)["optimizer"] == "muon lr=0.002"
    for records, shown in (([RECORD], False), ([muon], True), ([RECORD, muon], True)):
        assert ("optimizer" in [str(each) for each in compare.table(records).columns[0].cells]) == shown


def test_what_the_interface_carried_stands_beside_the_messages():
    ratios = {**RECORD["compression_ratio"], "nic": 20.0}
    assert compare.rows({**RECORD, "compression_ratio": ratios})["ratio interface"] == "20x"
    assert "ratio interface" not in compare.rows({**RECORD, "compression_ratio": {**ratios, "nic": None}})
    for nic, lines in ((3_000_000, 0), (3_240_000, 1)):
        sizes = {**RECORD["bytes_per_step"], "nic": nic}
        said = [
            line for line in compare.remarks({**RECORD, "bytes_per_step": sizes}) if "the interface carried" in line
        ]
        assert len(said) == lines
    assert said[0].startswith("the interface carried 2 times the bytes of the messages")


def test_warnings_are_shown_with_their_run(runs):
    path = runs / "ring" / "record.json"
    path.write_text(json.dumps({**RECORD, "warnings": ["it [red]diverges"]}))
    done = show(runs / "ring", runs / "tree")
    assert done.stdout.splitlines()[-1] == "ring: warning: it [red]diverges"


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
        (runs / name / "record.json").write_text(json.dumps({**RECORD, "warnings": ["slow"]}))
    assert script.main([str(runs / "ring"), str(runs / "tree" / "record.json")]) == 0
    said = capsys.readouterr().out
    assert lines_of(said)[""] == ["ring", "tree"]
    assert said.splitlines()[-2:] == ["ring: warning: slow", "tree: warning: slow"]


def test_latest_is_the_run_that_ended_last(runs):
    (runs / "still-running").mkdir()
    done = show("--latest", "--json", cwd=runs.parents[1])
    assert [record["config"]["name"] for record in json.loads(done.stdout)] == ["tree"]


def test_a_folder_of_runs_is_told_from_a_run(runs):
    done = show(str(runs.parent))
    assert done.returncode == 2 and "no such file; there are runs below, such as " in done.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("{", "not valid JSON"),
        ("\x80", "not valid JSON"),
        ("[]", "not a run's record: needs a table"),
        ('{"schema": 9}', "not a run's record: schema: needs 1, got 9"),
        (json.dumps({**RECORD, "phases": 3}), "not a run's record: phases: needs a table, got 3"),
    ],
)
def test_what_is_not_a_run_is_one_line(tmp_path, content, message):
    if content is not None:
        (tmp_path / "record.json").write_bytes(content.encode("latin-1"))
    done = show(tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"wirebench show: {tmp_path}/record.json: {message}")
    assert done.stderr.count("\n") == 1


def test_nothing_to_show(tmp_path):
    assert show(cwd=tmp_path).returncode == 2
    done = show("--latest", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "wirebench show: --latest: results/runs has no run that ended\n")


def test_help_tells_how():
    done = show("--help")
    assert done.returncode == 0 and "--latest" in done.stdout and "examples:" in done.stdout


def test_reading_records_needs_no_torch():
    code = "import sys; from wirebench.record import compare, schema, writer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
