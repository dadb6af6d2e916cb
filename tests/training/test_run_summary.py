"""The end of a run: what misleads is warned of, and why nothing was counted is said."""

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.ends import record
from tests.distributed.launch import CONFIG, here
from tests.telemetry.test_wire_stats import DENSE, SPARSE, traffic
from wirebench.collectives.execution.executor import RequestLog
from wirebench.config import loader
from wirebench.record import compare
from wirebench.training import run_summary

TOPK = {"compressor": {"name": "topk"}}
WARM = {"compressor": {"name": "topk", "warmup": [0.5, 0.25]}}
NOTHING = RequestLog("Gather", "native", 1, 8, 0, 8, 0.1)


def warnings(served: RequestLog, table: dict[str, Any], steps: int = 20, counted: bool = True) -> list[str]:
    """Of a run whose every step was served so, ten steps an epoch."""
    seen = traffic()
    seen.step([[served]], counted)
    return run_summary.warnings(loader.from_dict(table), "density", seen, steps, 10)


def test_what_compresses_needs_no_word():
    assert warnings(SPARSE, TOPK) == []
    assert warnings(DENSE, {}) == [], "the dense run is what it is"
    assert warnings(NOTHING, TOPK, counted=False) == []


def test_nothing_sent_is_warned_of():
    assert warnings(NOTHING, TOPK) == [
        "topk sent no value of the gradient in 1 counted steps; change compressor.density"
    ]


def test_no_less_than_dense_is_warned_of():
    (line,) = warnings(DENSE, TOPK)
    assert line.startswith("topk put no less on the wire than dense fp32 on a ring would: ratio wire 1; change")


@pytest.mark.parametrize(("steps", "said"), [(19, 1), (20, 1), (21, 0)])
def test_a_warm_up_of_the_whole_run_is_warned_of(steps: int, said: int):
    found = warnings(SPARSE, WARM, steps)
    assert len(found) == said
    assert all(line.startswith(f"compressor.warmup: all {steps} steps were within its 2 x 10") for line in found)


@pytest.mark.parametrize(("steps", "said"), [(8, 1), (9, 0)])
def test_local_steps_that_exchange_nothing_are_warned_of(steps: int, said: int):
    found = warnings(NOTHING, {"scheduler": {"name": "outer", "every": 6, "delay": 3}}, steps)
    assert [line.split(":")[0] for line in found] == ["scheduler.every"] * said


def record_of(folder: Path, *overrides: str) -> dict[str, Any]:
    assert here(2, [CONFIG, f"output.dir={folder}", *overrides]) == 0
    return record(folder)


def test_a_run_says_and_records_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quiet = record_of(tmp_path, "compressor.name=threshold", "compressor.threshold=1e9", "compressor.dense_below=0")
    line = "threshold sent no value of the gradient in 11 counted steps; change compressor.threshold"
    assert quiet["warnings"] == [line]
    assert capsys.readouterr().out.count(f"\nwarning: {line}\n") == 1
    wide = record_of(tmp_path, "compressor.density=0.9", "compressor.warmup=[0.9, 0.9]", "train.max_steps=6")
    assert [each.split(":")[0] for each in wide["warnings"]] == [
        "topk put no less on the wire than dense fp32 on a ring would",
        "compressor.warmup",
    ]
    assert "ratio wire, last step" in capsys.readouterr().out


def test_the_last_steps_ratio_is_that_after_the_warm_up(tmp_path: Path) -> None:
    settings = ["compressor.density=0.05", "compressor.dense_below=0", "train.epochs=3", "train.max_steps=0"]
    warm = record_of(tmp_path, "compressor.warmup=[0.5]", *settings)["compression_ratio"]
    flat = record_of(tmp_path, *settings)["compression_ratio"]
    assert warm["wire"] < warm["wire_last_step"] == pytest.approx(flat["wire"])
    assert "wire_last_step" not in flat


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["train.warmup_steps=5", "train.max_steps=3"], "train.warmup_steps = 5 of 3 steps"),
        (
            ["train.max_steps=3", "output.health_every=1"],
            "train.warmup_steps = 1 of 3 steps, and the rest were readings (output.health_every = 1)",
        ),
    ],
)
def test_a_run_without_a_counted_step_says_why(
    overrides: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = record_of(tmp_path, *overrides)
    assert f"\nno step was counted: {words}\n" in capsys.readouterr().out
    found["resumed_at"] = 1
    assert " of 2 steps" in compare.remarks(found)[0]


def test_a_scheduler_that_learns_is_named(tmp_path: Path) -> None:
    found = record_of(tmp_path, "train.max_steps=3")
    found["images_per_second"]["steps"] = 0
    found["load"][0]["others_cores"] = 0.0
    assert compare.remarks(found) == [
        "no step was counted: train.warmup_steps = 1 of 3 steps, and a scheduler that weighs times takes more to learn "
        "from"
    ]
