"""wirebench diagnose of a run under way: the phases so far, and that it is not over."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.verbs import verb
from wirebench.config import loader
from wirebench.record.writer import RunRecord
from wirebench.simulation.trace import Trace, TraceLayer
from wirebench.telemetry.step_stats import PHASES, StepTimes

main = verb("diagnose")
CONFIG = Path(__file__).parents[2] / "configs/synthetic/toy.toml"


def begin(folder: Path, *overrides: str) -> RunRecord:
    config = loader.load(CONFIG, ["engine.workers=2", "engine.name=torch", "train.max_steps=50", *overrides])
    return RunRecord(folder, loader.to_dict(config), loader.dump(config), {}, False, 2, print)


def log(record: RunRecord, steps: int, counted_from: int, **phases: float) -> None:
    for step in range(steps):
        seconds = dict.fromkeys(PHASES, 0.01) | (phases if step >= counted_from else {"data": 5.0})
        times = StepTimes(step, 0.1, seconds, 16, step >= counted_from)
        record.step(times, epoch=0, loss=1.0, learning_rate=0.1, wire_bytes=1000, extra={})


def diagnosed(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([str(folder), "--json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    return told


def test_the_phases_that_are_logged_so_far(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = begin(tmp_path)
    log(record, 12, 5, data=0.04)
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"step": 12, "sec')  # which the run is writing
    told = diagnosed(tmp_path, capsys)
    assert (told["under_way"]["steps"], told["under_way"]["counted"], told["under_way"]["total"]) == (12, 7, 50)
    assert told["under_way"]["silent"] is False and told["ranks_seen"] == [0]
    assert told["step_seconds"] == pytest.approx(0.1) and told["parts"]["data"] == pytest.approx(0.04)
    assert [each["name"] for each in told["findings"]] == ["data"]
    assert main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("This run is under way; 12 of 50 steps are logged, ") and "drew no messages" not in out
    assert "Until it ends only rank 0's phases are known" in out
    assert main([str(tmp_path), "--try"]) == 2
    assert "--try: this run is under way" in capsys.readouterr().err


def test_before_a_step_counts_the_warm_up_is_all_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = begin(tmp_path)
    assert main([str(tmp_path)]) == 2
    assert "no step of it is logged yet" in capsys.readouterr().err
    log(record, 2, 5)
    assert main([str(tmp_path)]) == 0
    assert "none of them counts yet" in capsys.readouterr().out


def test_a_run_that_is_silent_for_long_may_have_been_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(begin(tmp_path), 6, 2)
    before = time.time() - 100
    os.utime(tmp_path / "steps.jsonl", (before, before))
    assert main([str(tmp_path)]) == 0
    assert "This run has no record: it was killed, or is stuck" in capsys.readouterr().out


def test_the_gradients_size_is_known_where_the_run_has_measured_its_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(begin(tmp_path, "compressor.name=topk"), 6, 2, compress=0.05)
    assert diagnosed(tmp_path, capsys)["break_even_bytes_per_second"] is None
    layers = (TraceLayer("layer", 1000, 0.1, 0.1),)
    Trace("t", "toy", "cpu", 16, False, "test", "2", layers).save(tmp_path / "layers.json")
    told = diagnosed(tmp_path, capsys)
    assert told["break_even_bytes_per_second"] == pytest.approx((4000 - 1000) / 0.05)
    os.utime(tmp_path / "layers.json", (0, 0))  # an earlier run's, of another model maybe
    assert diagnosed(tmp_path, capsys)["break_even_bytes_per_second"] is None
