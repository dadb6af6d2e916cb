"""Profiler files that are odd in one way, as PyTorch 2.4 to 2.15 write them, or as a disk leaves them."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.verbs import run
from tests.diagnose.made_up import Plan, write
from tests.diagnose.test_kineto_cpu import step as gloo_step
from wirebench.diagnose import kineto
from wirebench.diagnose.evidence import Evidence
from wirebench.traces import profiler_file
from wirebench.traces.profiler_file import UNREAD

Content = dict[str, Any]
PLAN = Plan(comm=20_000, length=27_600, elements=10_000_000)
NCCL = ("Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size", "Process Group Name",
        "Process Group Ranks")  # fmt: skip


def written(folder: Path, edit: Callable[[Content], object], plan: Plan = PLAN) -> list[Path]:
    """The files of two ranks, each changed by `edit`."""
    paths = [write(folder / f"rank{rank}.json", plan._replace(rank=rank)) for rank in range(2)]
    for path in paths:
        content = json.loads(path.read_text())
        edit(content)
        # Many releases write a name as it is, whatever is in it.
        text = json.dumps(content).encode().replace(b"LINE_BREAK", b"\n").replace(b"QUOTE", b'"')
        path.write_bytes(text.replace(b"FREED", b"\x00\xe5\xff\x07"))
    return paths


def frames(content: Content) -> None:
    """with_stack=True, with_modules=True: a frame may have no end, and a name may have several lines."""
    begin = content["traceEvents"][0]["ts"]
    for number, took in enumerate((5.0, -9.2e15, 0.0)):
        name = f"<string>(1): LINE_BREAK f{number}"
        args = {"Python id": number, "Python parent id": None, "Call stack": "a.py(1): LINE_BREAK f"}
        event = {"ph": "X", "cat": UNREAD, "name": name, "pid": 100, "tid": 1, "ts": begin, "dur": took, "args": args}
        content["traceEvents"].append(event)
    for event in content["traceEvents"]:
        event["args"] |= {"Call stack": "a.py(1): LINE_BREAK f", "Module Hierarchy": "TOP(Net).layer(Linear)"}


def freed(content: Content) -> None:
    """with_stack=True in most releases: code has quotes in its name, or its memory was freed."""
    begin = content["traceEvents"][0]["ts"]
    for name in ("{QUOTEdtypeQUOTE: QUOTEfloat32QUOTE}(12): run", "torch/config.py(0): FREED", "FREEDQUOTE, "):
        event = {"ph": "X", "cat": UNREAD, "name": name, "pid": 100, "tid": 1, "ts": begin, "dur": 5.0, "args": {}}
        content["traceEvents"].insert(1, event)


def memory(content: Content) -> None:
    """profile_memory=True, and what Kineto marks in each file."""
    begin = content["traceEvents"][0]["ts"]
    named: list[tuple[str, Content]] = [("[memory]", {"cat": "cpu_instant_event", "args": {"Bytes": -8}})]
    named += [(name, {"args": {}}) for name in ("Record Window End", "Iteration Start: PyTorch Profiler")]
    for name, more in named:
        content["traceEvents"].append({"ph": "i", "s": "t", "name": name, "pid": 1, "tid": 1, "ts": begin, **more})
    content["traceEvents"].append({"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "ts": 0.0, "args": {}})


def twice(content: Content) -> None:
    """The ranges nccl:all_reduce on the host, and again on the GPU's stream."""
    kernels = [each for each in content["traceEvents"] if each["name"].startswith("nccl")]
    for category in ("user_annotation", "gpu_user_annotation"):
        content["traceEvents"] += [{**each, "cat": category, "name": "nccl:all_reduce"} for each in kernels]


def by_number(content: Content) -> None:
    """The kernel does not say what it does; the host's event of its number does."""
    for number, event in enumerate(content["traceEvents"]):
        if event["name"] == "record_param_comms":
            event["args"]["External id"] = number
        elif event["name"].startswith("nccl"):
            event["args"] = {key: value for key, value in event["args"].items() if key not in NCCL}
            event["args"]["External id"] = number - 2


def by_place(content: Content) -> None:
    by_number(content)
    for event in content["traceEvents"]:
        event["args"].pop("External id", None)


def undefined(content: Content) -> None:
    content["distributedInfo"]["backend"] = "undefined"


def unnamed(content: Content) -> None:
    """A profiler that began before init_process_group: the rank is in the file's name alone."""
    del content["distributedInfo"]


def coalesced(content: Content) -> None:
    for event in content["traceEvents"]:
        if event["name"].startswith("nccl"):
            event["args"]["Collective name"] = "coalesced"


def lost(content: Content) -> None:
    """One event of many has no time."""
    begin = content["traceEvents"][0]["ts"]
    more = {"ph": "X", "cat": "cpu_op", "name": "aten::empty", "pid": 1, "tid": 9, "ts": begin, "dur": 1.0, "args": {}}
    content["traceEvents"] += [dict(more) for _ in range(200)]
    content["traceEvents"].append(more | {"cat": "kernel", "name": "gemm", "ts": 0.0, "dur": 0.0})


SAME = (frames, freed, memory, twice, by_number, by_place, undefined, unnamed, coalesced, lost)


def facts(evidence: Evidence) -> Any:
    assert evidence.job is not None
    job = evidence.job
    return job.framework, job.steps, job.buckets, job.sizes, job.rows, job.clocks, evidence.record["backend"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return facts(kineto.read(written(tmp_path_factory.mktemp("plain"), lambda content: None)))


@pytest.mark.parametrize("edit", SAME, ids=[each.__name__ for each in SAME])
def test_it_says_the_same(edit: Callable[[Content], None], plain: Any, tmp_path: Path) -> None:
    assert facts(kineto.read(written(tmp_path, edit))) == plain


def test_ranks_that_are_missing(tmp_path: Path) -> None:
    """Ranks 1 and 5 of eight: the file says it, or the name and NCCL's groups do."""

    def eight(content: Content) -> None:
        content["distributedInfo"] |= {"world_size": 8, "rank": 1 + 4 * content["distributedInfo"]["rank"]}

    said = run("diagnose", "--kineto", *written(tmp_path, eight)).stdout
    assert said.startswith("2 of 8 ranks, DDP over NCCL") and "Rank 5's clock is " in said
    paths = written(tmp_path, unnamed)
    paths[1] = paths[1].rename(tmp_path / "rank5.json")
    assert run("diagnose", "--kineto", *paths).stdout.startswith("2 of 6 ranks")


def test_gloo_without_the_number_of_ranks(tmp_path: Path) -> None:
    """The files are all there is to count; a message has its size."""
    for rank in range(2):
        events = [each for number in range(4) for each in gloo_step(number, 1, "cpu_op")]
        (tmp_path / f"rank{rank}.json").write_text(json.dumps({"traceEvents": events}))
    evidence = kineto.read([tmp_path / "rank0.json", tmp_path / "rank1.json"])
    assert [each.wire_bytes for each in evidence.messages] == [40_000] and evidence.record["world_size"] == 2
    assert kineto.read([tmp_path / "rank1.json"]).record["world_size"] == 2


def no_time(content: Content) -> None:
    """As after an overflow of the profiler's memory."""
    for event in content["traceEvents"]:
        if event["cat"] == "kernel":
            event |= {"ts": 0.0, "dur": 0.0}


def alone(content: Content) -> None:
    content["traceEvents"] = [each for each in content["traceEvents"] if not each["name"].startswith("nccl")]


def without_steps(content: Content) -> None:
    bounds = ("ProfilerStep", "Optimizer")
    content["traceEvents"] = [each for each in content["traceEvents"] if not each["name"].startswith(bounds)]


def of_a_host(content: Content) -> None:
    """Recorded with ProfilerActivity.CPU alone."""
    content["traceEvents"] = [each for each in content["traceEvents"] if each["cat"] != "kernel"]


TEXT = json.dumps({"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": 1.0, "dur": 1.0}] * 50}).encode()
REFUSED: dict[str, tuple[bytes | Callable[[Content], None], str]] = {
    "most times are lost": (no_time, "events have no time (ts 0, dur 0)"),
    "one process": (alone, "has no collectives"),
    "without kernels": (of_a_host, "has no kernels; record with ProfilerActivity.CUDA"),
    "cut off": (TEXT[:-30], "not valid JSON"),
    "packed and empty": (gzip.compress(b""), "is empty"),
    "another table": (b"{}", "has no traceEvents"),
    "no table": (b"7", "has no traceEvents"),
    "no step's bounds": (without_steps, "has no steps"),
    "events of another kind": (b'{"traceEvents": [7, null, "a", [], {}, {"ph": "X"}]}', "has no steps"),
    "Chrome's own": (b'{"traceEvents": [{"ph": "B", "cat": "blink", "name": "a", "ts": 1}]}', "has no steps"),
    "another program's": (b'[{"ph": "X", "name": "a", "ts": 1, "dur": 1}]', "traceEvents[0] has no category"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_one_line(name: str, tmp_path: Path) -> None:
    made, words = REFUSED[name]
    path = tmp_path / "rank0.json"
    if isinstance(made, bytes):
        path.write_bytes(made)
    else:
        written(tmp_path, made)
    done = run("diagnose", "--kineto", path)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr
    assert done.stdout == ""


def test_frames_of_python_do_not_fill_the_memory(tmp_path: Path) -> None:
    """Of a file of 500 MB they are most; beside the text the memory has the rest, with the arguments that are read."""
    content = json.loads(write(tmp_path / "a.json", PLAN).read_text())
    frame = {"ph": "X", "cat": UNREAD, "pid": 1, "tid": 1, "ts": 1.0, "dur": 1.0}
    content["traceEvents"] += [
        {
            **frame,
            "name": f"a.py({place}): f",
            "args": {"Python id": place, "Python parent id": 7, "Call stack": "a.py"},
        }
        for place in range(10_000)
    ]
    text = json.dumps(content).encode()
    del content
    tracemalloc.start()
    try:
        found = profiler_file.load(tmp_path / "a.json", text)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.operators and most < 1.5 * len(text)
