"""Profiler files over Gloo, made up: its ranges lie on the main thread, or on a thread of their own."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.verbs import run
from wirebench.diagnose import kineto
from wirebench.diagnose.evidence import Evidence
from wirebench.diagnose.fewer_bytes import Other
from wirebench.diagnose.full_link import carried
from wirebench.traces.profiler_file import NODE

STEP = 50_000.0
"""Microseconds: 1000 without any, 10000 forward, 20000 backward, 15000 until the sum is there, 3000 update, 1000."""


def step(number: int, thread: int, category: str) -> list[dict[str, Any]]:
    at = number * STEP

    def event(name: str, begin: float, took: float, kind: str = "cpu_op", tid: int = 1, **args: Any) -> dict[str, Any]:
        named = {key.replace("_", " "): value for key, value in args.items()}
        return {
            "ph": "X",
            "cat": kind,
            "name": name,
            "pid": 1,
            "tid": tid,
            "ts": at + begin,
            "dur": took,
            "args": named,
        }

    note, grad = "user_annotation", "torch::autograd::AccumulateGrad"
    first: dict[str, Any] = {"Sequence_number": 2 * number + 1, "Input_Dims": [[8, 100], [100, 100]]}
    return [
        event(f"ProfilerStep#{number}", 0, STEP, note),
        event("DistributedDataParallel.forward", 1000, 9000, note),
        event("aten::linear", 1000, 10_000, **first),
        event(f"{NODE}AddmmBackward0", 11_000, 19_000, Sequence_number=2 * number + 1, Fwd_thread_id=1),
        event("aten::mm", 11_000, 18_900),
        event(f"{NODE}{grad}", 30_000, 1000, Sequence_number=2 * number, Fwd_thread_id=1),
        event(grad, 30_000, 100, Input_Dims=[[100, 100]]),
        event("aten::mul", 30_100, 900),
        event("gloo:all_reduce", 30_500, 15_500, category, thread, Input_Dims=[[10_000]], Input_type=["float"]),
        event("aten::copy_", 46_000, 100),
        event("Optimizer.step#SGD.step", 46_200, 3000, note),
        event("aten::add_", 46_200, 3000),
    ]  # fmt: skip


def read(folder: Path, thread: int, category: str) -> Evidence:
    return kineto.read(written(folder, [each for number in range(4) for each in step(number, thread, category)]))


def written(folder: Path, events: list[dict[str, Any]]) -> list[Path]:
    """The same events of two ranks."""
    paths = []
    for rank in range(2):
        about = {"distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}, "host_name": "one"}
        paths.append(folder / f"{rank}.json")
        paths[-1].write_text(json.dumps({**about, "traceEvents": events}))
    return paths


@pytest.mark.parametrize(("thread", "category"), [(1, "cpu_op"), (1, "user_annotation"), (7, "user_annotation")])
def test_what_a_step_waits_for(thread: int, category: str, tmp_path: Path) -> None:
    """The range began within a backward node, whose thread goes on: what follows it is none of its parts."""
    evidence = read(tmp_path, thread, category)
    phases = {name: round(1e6 * seconds) for name, seconds in evidence.ranks[0]["phases"].items()}
    assert phases["exchange_exposed"] == 15_000 and phases["update"] == 3000
    assert (phases["forward"], phases["backward"]) == (10_000, 20_000)
    # Without a data loader it is data what passes before the forward pass; after the last update none follows.
    assert phases["data"] == round((3 * 1000 + 2 * (STEP - 49_200)) / 3)
    [message] = evidence.messages
    assert message.wire_bytes == 40_000 and message.seconds == pytest.approx(15_500e-6)
    assert evidence.layers is not None and evidence.record["config"]["scheduler"]["name"] == "fused"
    assert evidence.on_one_host and evidence.job is not None and evidence.job.buckets == (40_000,)


def test_a_range_that_the_recording_did_not_see_end(tmp_path: Path) -> None:
    """As all releases write it where Gloo's thread is late: the last step of that rank is not whole."""
    paths = written(tmp_path, [each for number in range(5) for each in step(number, 1, "user_annotation")])
    content = json.loads(paths[1].read_text())
    last = [each for each in content["traceEvents"] if each["name"].startswith("gloo")][-1]
    last |= {"dur": 0.0, "args": {}}
    paths[1].write_text(json.dumps(content))
    evidence = kineto.read(paths)
    assert evidence.job is not None and (evidence.job.steps, evidence.job.left_out) == (3, 0)
    assert [each.wire_bytes for each in evidence.messages] == [40_000] and evidence.job.clocks[0].ends == 3


def test_counts_are_no_gradients(tmp_path: Path) -> None:
    """DDP(find_unused_parameters=True) sums a number for each parameter after the last bucket."""
    events = [each for number in range(4) for each in step(number, 1, "user_annotation")]
    for each in [each for each in events if each["name"].startswith("gloo")]:
        counts = {**each["args"], "Input Dims": [[7]], "Input type": ["int"]}
        events.append({**each, "ts": each["ts"] + 100, "dur": each["dur"] - 50, "args": counts})
    evidence = kineto.read(written(tmp_path, events))
    assert evidence.job is not None and evidence.job.buckets == (40_000,) and evidence.layers is not None
    assert sorted(each.wire_bytes for each in evidence.messages) == [28, 40_000]


def test_a_sparse_gradient_has_no_size(tmp_path: Path) -> None:
    """The file has the shape of the whole embedding."""
    events = [each for number in range(4) for each in step(number, 1, "user_annotation")]
    renamed = [{**each, "name": each["name"].replace("gloo:", "gloo:sparse_")} for each in events]
    evidence = kineto.read(written(tmp_path, renamed))
    assert not evidence.messages and evidence.phase("exchange_exposed") == pytest.approx(0.015)


def without(number: int, *names: str) -> list[dict[str, Any]]:
    """A step without the events of these names."""
    return [each for each in step(number, 1, "user_annotation") if not each["name"].startswith(names)]


def accumulated(number: int, whole: bool) -> list[dict[str, Any]]:
    """Three backward passes, the last of which sums; one of the profiler's steps for all of them, or for each."""
    parts = [without(3 * number + place, "gloo", "Optimizer", "aten::add", "aten::copy") for place in range(2)]
    parts.append(without(3 * number + 2))
    if whole:
        parts[0][0]["dur"] = 3 * STEP
        parts = [parts[0], *(part[1:] for part in parts[1:])]
    return [each for part in parts for each in part]


@pytest.mark.parametrize("whole", [True, False], ids=["a step for each update", "a step for each pass"])
def test_gradients_that_accumulate(whole: bool, tmp_path: Path) -> None:
    """All passes are of the step; the exchange hides behind the last one alone. The recording began within a step."""
    events = [each for number in range(4) for each in accumulated(number, whole)]
    evidence = kineto.read(paths := written(tmp_path, events[0 if whole else 6 :]))
    job, phases = evidence.job, evidence.ranks[0]["phases"]
    assert job is not None and (job.steps, job.passes, job.quiet, job.left_out) == (3, 3, 2, 0)
    assert (phases["forward"], phases["backward"]) == pytest.approx((0.03, 0.06))
    assert phases["exchange_exposed"] == pytest.approx(0.015) and evidence.step == pytest.approx(3e-6 * STEP)
    assert job.buckets == (40_000,) and evidence.layers is not None
    assert Other(evidence, carried(evidence)).trace.forward_seconds == pytest.approx(0.07)
    said = run("diagnose", "--kineto", *paths).stdout
    assert "Gradients accumulate: 1 of the 3 backward passes of a step exchanges them." in said
    assert "wirebench advise" not in said


@pytest.mark.parametrize("kind", ["local", "validation"])
def test_steps_that_train_nothing_or_exchange_nothing(kind: str, tmp_path: Path) -> None:
    """Every second step: one of local SGD, or one of validation, whose buffers DDP broadcasts."""
    lacking = ("gloo",) if kind == "local" else (NODE, "Optimizer", "torch::autograd")
    others = [without(number, *lacking) for number in (1, 3, 5)]
    for each in (event for events in others for event in events if event["name"].startswith("gloo")):
        each["name"] = "gloo:broadcast"
    events = [each for number in (0, 2, 4) for each in without(number)] + [each for other in others for each in other]
    paths = written(tmp_path, events)
    evidence = kineto.read(paths)
    assert evidence.job is not None and (evidence.job.steps, evidence.job.left_out) == (2, 3)
    assert [each.kind for each in evidence.messages] == ["all_reduce"]
    assert "are left out: 3 of a file." in run("diagnose", "--kineto", *paths).stdout
