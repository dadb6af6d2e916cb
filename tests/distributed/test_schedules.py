"""Schedules in real jobs: what is measured beforehand and what comes of it, and all-gathers that come later."""

import json
from pathlib import Path
from typing import Any

import pytest

from papers.mg_wfbp.measured import together
from tests.distributed.ends import assert_same_end, checkpoints, record
from tests.distributed.forked import finish
from tests.distributed.launch import CONFIG, ROOT, Ended
from wirebench import schedulers
from wirebench.costmodel.piecewise import Piecewise
from wirebench.exchange.reduce_scatter import WAIT
from wirebench.gradient.schedule import LayerCost
from wirebench.profiling import profile_files
from wirebench.simulation import trace
from wirebench.telemetry.timeline import ALL_GATHER

REPLAY = ROOT / "configs/replay/resnet20.toml"
SHORT = ["train.eval_every=0", "output.tensorboard=false"]


def trained(engine: str, size: int, folder: Path, *changes: str, config: Path = CONFIG) -> Ended:
    """A run of at least 12 steps; its own words are for a failure."""
    return finish(engine, size, [config, *SHORT, f"output.dir={folder}", *changes], folder.parent / "logs")


@pytest.mark.parametrize("engine", ["torch", pytest.param("horovod", marks=pytest.mark.slow)])
def test_a_scheduler_learns_and_its_profile_gives_the_same_cut_again(engine: str, tmp_path: Path) -> None:
    steps = ["train.max_steps=14", "train.checkpoint_every_steps=14", "scheduler.name=optimal"]
    ended = trained(engine, 2, tmp_path / "first", *steps)
    assert "cut into" in ended.out + ended.err
    found = record(tmp_path / "first")
    assert found["images_per_second"]["steps"] == 14 - 9
    assert found["prediction"]["step_seconds"] > found["prediction"]["exposed_seconds"] >= 0
    layers = trace.load(tmp_path / "first" / "layers.json")
    assert layers.numel == found["parameters"]
    assert layers.backward_seconds > 0
    exchange = json.loads((tmp_path / "first" / "exchange.json").read_text())
    assert exchange["points"][-1][0] == found["parameters"]
    # The files are what the cut was made from, not what was measured of it afterwards.
    backward = [LayerCost(layer.name, layer.numel) for layer in reversed(layers.layers)]
    timed, points = profile_files.load(tmp_path / "first", backward, exchange)
    again = schedulers.build("optimal").partition(timed, Piecewise(points))
    state = json.loads((checkpoints(tmp_path / "first")[-1] / "state.json").read_text())
    assert [[group.start, group.stop] for group in again] == state["progress"]["calibration"]["bounds"]
    taken = [*steps, "train.warmup_steps=4", f"scheduler.profile={tmp_path / 'first'}"]
    for name, drawn in (("second", "true"), ("third", "false")):
        drawing = [f"output.trace_all_ranks={drawn}", "output.trace_steps=10"]
        assert "cut into" not in trained(engine, 2, tmp_path / name, *taken, *drawing).out
    assert_same_end(tmp_path / "second", tmp_path / "third")
    assert record(tmp_path / "second")["prediction"]["messages"] == found["prediction"]["messages"]
    requests = [event for event in events(tmp_path / "second") if "plan" in event["args"]]
    sent = {rank: sum(each["args"]["wire_bytes"] for each in requests if each["pid"] == rank) for rank in (0, 1)}
    assert sent == dict.fromkeys((0, 1), 10 * record(tmp_path / "second")["bytes_per_step"]["wire"])
    assert {each["name"] for each in requests} == {each["kind"] for each in found["requests"]}
    assert {each["args"]["plan"] for each in requests} == {each["plan"] for each in found["requests"]}
    assert {event["pid"] for event in events(tmp_path / "third")} == {0}


def test_a_resumed_run_keeps_the_cut_that_was_learned(tmp_path: Path) -> None:
    chosen = ["scheduler.name=mg_wfbp", "train.checkpoint_every_steps=4", f"output.dir={tmp_path / 'run'}"]
    trained("torch", 2, tmp_path / "run", *chosen, "train.max_steps=8")
    state = json.loads((checkpoints(tmp_path / "run")[-1] / "state.json").read_text())
    bounds = state["progress"]["calibration"]["bounds"]
    ended = trained("torch", 2, tmp_path / "run", *chosen, "train.max_steps=16", "train.resume=auto")
    assert "cut into" not in ended.out + ended.err
    state = json.loads((checkpoints(tmp_path / "run")[-1] / "state.json").read_text())
    assert state["progress"]["calibration"]["bounds"] == bounds


def spans(folder: Path) -> list[tuple[str, float, float]]:
    """(name, begin, end) of everything drawn."""
    return [(e["name"], e["ts"], e["ts"] + e["dur"]) for e in events(folder)]


def events(folder: Path) -> list[dict[str, Any]]:
    """Every span of every rank, as trace.json has it."""
    return [each for each in json.loads((folder / "trace.json").read_text())["traceEvents"] if each["ph"] == "X"]


@pytest.mark.slow
@pytest.mark.clock
def test_all_gathers_go_under_the_next_forward_pass(tmp_path: Path) -> None:
    chosen = ["scheduler.name=dear", "scheduler.bucket_cap_mb=0.1", "train.max_steps=20", "output.trace_steps=8"]
    trained("torch", 2, tmp_path / "run", *chosen, config=REPLAY)
    drawn = spans(tmp_path / "run")
    forward = sorted((begin, end) for name, begin, end in drawn if name == "forward")
    gathers = [(begin, end) for name, begin, end in drawn if name.endswith(ALL_GATHER)]
    scatters = [(b, e) for name, b, e in drawn if name.startswith("bucket") and not name.endswith(ALL_GATHER)]
    backward = sorted((begin, end) for name, begin, end in drawn if name == "backward")
    assert gathers
    assert len(gathers) >= len(forward)
    under = [any(b < end and begin < e for b, e in forward) for begin, end in gathers]
    assert sum(under) > len(under) / 2
    waits = [(begin, end) for name, begin, end in drawn if name.startswith(WAIT)]
    assert together(gathers, forward) > together(gathers, waits), "nothing is hidden: the pass stands still"
    assert not any(b < begin and end < e for b, e in forward for begin, end in scatters)
    assert any(b < begin < e for b, e in backward for begin, _ in scatters)


def test_the_engines_own_synchroniser_has_a_prediction_too(tmp_path: Path) -> None:
    trained("torch", 2, tmp_path / "run", "scheduler.name=builtin", "train.max_steps=20", config=REPLAY)
    assert record(tmp_path / "run")["prediction"]["messages"] == 1 + (269_722 * 4 > 2**20)
