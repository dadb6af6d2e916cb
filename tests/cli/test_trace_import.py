"""wirebench trace import: profiler files of ordinary loops and layer logs; what is neither is one line."""

import gzip
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.cli.verbs import Done, run, verb
from wirebench.simulation import trace
from wirebench.simulation.trace import Trace
from wirebench.traces.kineto import GRADIENT
from wirebench.traces.profiler_file import KINDS, NODE

LINEAR = [[4, 3], [2, 3], [2]]


def event(name: str, at: float, took: float, category: str = "cpu_op", **args: Any) -> dict[str, Any]:
    named = {key.replace("_", " "): value for key, value in args.items()}
    return {"ph": "X", "cat": category, "name": name, "ts": at, "dur": took, "pid": 1, "tid": 1, "args": named}


def used(name: str, at: float, took: float, number: int, shapes: list[list[int]] | None = None) -> dict[str, Any]:
    """An operator that autograd watches; its shapes are those of a linear layer."""
    args = {"Sequence number": number, "Fwd thread id": 0, "Input Dims": shapes or LINEAR}
    return {**event(name, at, took), "args": args}


def node(name: str, at: float, took: float, number: int) -> dict[str, Any]:
    args = {"Sequence number": number, "Fwd thread id": 1}
    return {**event(f"{NODE}{name}", at, took), "args": args}


def gradient(at: float, shape: list[int]) -> dict[str, Any]:
    return {**event(GRADIENT, at, 1), "args": {"Input Dims": [shape]}}


def step(at: float, number: int, late: float = 0) -> list[dict[str, Any]]:
    """Two layers: forward 10 and 20 us, backward 30 and 20 us, `late` us after the forward pass."""
    back = at + late
    return [
        used("aten::linear", at, 10, number), used("aten::linear", at + 15, 20, number + 1, [[4, 2], [5, 2], [5]]),
        node("AddmmBackward0", back + 40, 30, number + 1), gradient(back + 69, [5, 2]),
        node("AddmmBackward0", back + 71, 18, number), gradient(back + 89, [2, 3]),
    ]  # fmt: skip


def steps(*extra: Any, late: float = 0) -> list[dict[str, Any]]:
    """Three steps, and before each one what `extra` makes of its begin and of its first sequence number."""
    made = []
    for turn in range(3):
        at, number = 1000.0 * turn, 10 * turn
        made += [*step(at, number, late), *(each for one in extra for each in one(at, number))]
    return made


def item(at: float, number: int) -> list[dict[str, Any]]:
    """After the step; it waits. Autograd gives it the number of the next step's first operator."""
    return [used("aten::item", at + 100, 800, number + 10, [[]])]


def evaluation(at: float, number: int) -> list[dict[str, Any]]:
    """Without gradients operators have no numbers; with them they have the next step's."""
    return [event("aten::linear", at + 200, 300), used("aten::linear", at + 600, 300, number + 10)]


def metric(at: float, number: int) -> list[dict[str, Any]]:
    """Between the passes, of a loss that is known."""
    return [used("aten::argmax", at + 40, 200, number + 2, [[4, 5]]), used("aten::item", at + 250, 200, number + 2)]


def waits_within(at: float, number: int) -> list[dict[str, Any]]:
    """A number that the host reads between two layers."""
    return [used("aten::item", at + 11, 3, number + 1, [[]])]


def without_arrow(at: float, number: int) -> list[dict[str, Any]]:
    """Another thread's operator with the same number, which came later and belongs to no step."""
    return [{**used("aten::linear", at + 36, 2, number + 1), "tid": 2}]


def arrow(at: float, number: int) -> list[dict[str, Any]]:
    def end(ph: str, ts: float, place: int) -> dict[str, Any]:
        return {"ph": ph, "cat": "fwdbwd", "name": "fwdbwd", "id": number + place, "ts": ts, "pid": 1, "tid": 1}

    return [
        end("s", at + 15, 1),
        end("f", at + 40, 1),
        end("s", at, 0),
        end("f", at + 71, 0),
        *without_arrow(at, number),
    ]


def imported(path: Path, *words: str) -> Done:
    out = path.parent / "found.json"
    return run("trace", "import", path, "--model", "m", "--batch", 4, "--hardware", "CPU", "--out", out, *words)


def trace_of(events: object, path: Path) -> Trace:
    path.write_text(json.dumps(events))
    done = imported(path)
    assert done.returncode == 0, done.stderr
    return trace.load(path.parent / "found.json")


@pytest.mark.parametrize(
    ("events", "late"),
    [
        (steps(), 0), (steps(item), 0), (steps(evaluation), 0), (steps(evaluation, item), 0),
        (steps(metric, late=500), 500), (steps(waits_within), 0), (steps(arrow), 0),
    ],
    ids=["plain", "item", "evaluation", "both", "metrics between", "a number within", "arrows"],
)  # fmt: skip
def test_only_operators_of_the_step_are_its_forward_pass(events: list[dict], late: float, tmp_path: Path) -> None:
    found = trace_of({"traceEvents": events}, tmp_path / "a.json")
    times = [
        (each.shape, round(1e6 * each.forward_seconds), round(1e6 * each.backward_seconds)) for each in found.layers
    ]
    assert times == [((2, 3), 10, 20), ((5, 2), 20, 30)]


def test_the_categories_of_pytorch_1_12_are_todays(tmp_path: Path) -> None:
    old = [{**each, "cat": "Operator"} for each in steps(item)]
    new, same = (trace_of(each, tmp_path / "a.json") for each in (steps(item), old))
    assert same == new


@pytest.mark.parametrize(
    ("kernel", "call"),
    [("Kernel", "Runtime"), ("kernel", "xpu_runtime"), ("kernel", "privateuse1_runtime"), ("hpu_op", "glow_runtime"),
     ("mtia_ccp_events", "mtia_runtime")],
)  # fmt: skip
def test_every_devices_kernels_are_its_time(kernel: str, call: str, tmp_path: Path) -> None:
    """By hand: the device runs 1000 us behind its host; each operator's kernel takes 3 us."""
    events = []
    for place, each in enumerate(steps()):
        events.append(each)
        if each["name"] != GRADIENT:
            args = {"correlation": place}
            events.append({**event("launch", each["ts"] + 1, 1, call), "args": args})
            events.append({**event("gemm", each["ts"] + 1000, 3, kernel), "tid": 7, "args": args})
    found = trace_of(events, tmp_path / "a.json")
    assert [round(1e6 * each.forward_seconds) for each in found.layers] == [3, 3]
    lost = [each for each in events if each["name"] != "launch" or each["ts"] < 1030]
    (tmp_path / "a.json").write_text(json.dumps(lost))
    done = imported(tmp_path / "a.json")
    assert done.returncode == 2 and "kernel 'gemm' at" in done.stderr and done.stderr.count("\n") == 1
    other = [*events, {**event("gemm", 1500, 3, kernel), "tid": 8, "args": {"correlation": [1]}}]
    (tmp_path / "a.json").write_text(json.dumps(other))
    assert "kernel 'gemm' at 1500 us has no launch" in imported(tmp_path / "a.json").stderr, "a stream of its own"
    early = [*events, {**event("gemm", 0, 1, kernel), "tid": 8, "args": {"correlation": -1}}]
    assert trace_of(early, tmp_path / "a.json").layers == found.layers, "from before the recording"


def test_gradients_of_data_are_none_of_the_models(tmp_path: Path) -> None:
    """A first layer of 4 x 2 on 4 samples of 2: only the optimizer, or the place of its tensor, tells them apart."""

    def also(at: float, number: int) -> list[dict[str, Any]]:
        return [gradient(at + 88, [4, 3])]

    def optimizer(at: float, number: int) -> list[dict[str, Any]]:
        shapes = {"Input Dims": [[[2, 3], [5, 2]], []]}
        return [
            event("Optimizer.step#SGD.step", at + 120, 50, "user_annotation"),
            {**event("aten::_foreach_add_", at + 130, 5), "args": shapes},
        ]

    for events in (steps(also), steps(also, optimizer)):
        assert [each.shape for each in trace_of(events, tmp_path / "a.json").layers] == [(2, 3), (5, 2)]


@pytest.mark.parametrize("turns", [range(3), range(2)], ids=["in turns", "one more often"])
def test_two_models_in_a_loop_are_one_line(turns: range, tmp_path: Path) -> None:
    def other(at: float, number: int) -> list[dict[str, Any]]:
        if at // 1000 not in turns:
            return []
        return [
            used("aten::linear", at + 200, 10, number + 5),
            node("A", at + 300, 10, number + 5),
            gradient(at + 309, [7]),
        ]

    (tmp_path / "a.json").write_text(json.dumps(steps(other)))
    done = imported(tmp_path / "a.json")
    assert done.returncode == 2 and "several models, with 2 and 1 gradients" in done.stderr


def test_a_second_pass_through_a_graph_has_no_forward_pass(tmp_path: Path) -> None:
    """`retain_graph`: most of the passes are such."""

    def again(at: float, number: int) -> list[dict[str, Any]]:
        passes = []
        for after in (200, 300):
            nodes = step(at + after, number)[2:]
            passes += [event("aten::ones_like", at + after + 38, 1), *nodes]
        return passes

    found = trace_of(steps(again), tmp_path / "a.json")
    assert [round(1e6 * each.forward_seconds) for each in found.layers] == [10, 20]


def test_a_recording_without_a_forward_pass_is_one_line(tmp_path: Path) -> None:
    nodes = [each for each in steps() if each["name"] != "aten::linear"]
    (tmp_path / "a.json").write_text(json.dumps(nodes))
    assert "no forward operator in it belongs to a backward node" in imported(tmp_path / "a.json").stderr


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_passes_of_a_step_are_each_a_pass(order: tuple[int, int], tmp_path: Path) -> None:
    """Both forward passes first; each backward pass begins with the gradient of its loss."""
    events = []
    for turn in range(3):
        at, number = 1000.0 * turn, 10 * turn
        for place, call in enumerate(order):
            late = 200.0 * (call + 1) - 100 * place
            events += [event("aten::ones_like", at + 100 * place + late + 38, 1)]
            events += step(at + 100 * place, number + 5 * place, late)
    assert [each.numel for each in trace_of(events, tmp_path / "a.json").layers] == [6, 10]


def test_recomputation_is_part_of_the_backward_pass(tmp_path: Path) -> None:
    """A block that is checkpointed either way has the tensors and the forward operators of one that is not."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(2)), nn.Linear(8, 3))
    counts = []
    for kept in (None, False, True):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as recorded:
            for _ in range(2):
                hidden: Tensor = torch.randn(8, 8).requires_grad_()
                for block in model:
                    hidden = block(hidden) if kept is None else checkpoint(block, hidden, use_reentrant=kept)
                hidden.sum().backward()
        recorded.export_chrome_trace(str(tmp_path / "a.json"))
        assert imported(tmp_path / "a.json").returncode == 0
        counts.append(sorted(each.numel for each in trace.load(tmp_path / "found.json").layers))
    assert counts == [[3, 8, 8, 24, 64, 64]] * 3


def test_a_checkpoints_function_takes_the_time_of_its_layers(tmp_path: Path) -> None:
    """One within another; what they do in Python, such as to save the state of a generator, is no layer's."""
    found = []
    for name in ("aten::linear", "CheckpointFunction"):
        events = []
        for turn in range(3):
            at, number = 1000.0 * turn, 10 * turn
            events += [used(name, at, 100, number), *step(at + 200, number + 1)]
            events += [node("Backward0", at + 330, 20, number), gradient(at + 345, [7])]
            inner = [
                ("aten::mul", 10, 20),
                ("CheckpointFunction", 40, 50),
                ("aten::linear", 60, 20),
                ("aten::mm", 62, 9),
            ]
            events += [event(each, at + after, took) for each, after, took in inner]
        found.append([round(1e6 * each.forward_seconds) for each in trace_of(events, tmp_path / "a.json").layers])
    assert found == [[100, 10, 20], [40, 10, 20]]


TEXT = json.dumps({"traceEvents": steps()}).encode()
PACKED = gzip.compress(TEXT, mtime=0)


@pytest.mark.parametrize(
    "content",
    [json.dumps(steps()).encode(), b"\xef\xbb\xbf" + TEXT, PACKED, TEXT.decode().encode("utf-16")],
    ids=["a list", "a mark of its bytes' order", "gzip", "UTF-16"],
)  # fmt: skip
def test_the_same_file_in_another_form(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    done = imported(tmp_path / "a.json")
    assert done.returncode == 0, done.stderr
    assert trace.load(tmp_path / "found.json").forward_seconds == pytest.approx(30e-6)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (TEXT[:300], "not valid JSON"), (PACKED[:90], "damaged gzip"), (PACKED[:20] + b"\0" * 40, "damaged gzip"),
        (json.dumps([*steps()[:-1], gradient(2089, [10**30, 3])]).encode(), "says no shapes"),
        (json.dumps([*steps()[:-1], gradient(2089, [True, -3])]).encode(), "says no shapes"),
    ],
    ids=map(str, range(5)),
)  # fmt: skip
def test_what_is_no_profile_is_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(content)
    done = imported(tmp_path / "a.json")
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_what_the_shell_opens_is_read(tmp_path: Path) -> None:
    """`<(command)`, once: what has been read of a pipe is gone."""
    reads, writes = os.pipe()
    os.write(writes, TEXT)
    os.close(writes)
    done = imported(Path(f"/dev/fd/{reads}"), "--out", str(tmp_path / "found.json"))
    os.close(reads)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_every_category_of_this_pytorch_is_known() -> None:
    """By the names in its library; those that no event has are left out."""
    library = (Path(torch.__file__).parent / "lib/libtorch_cpu.so").read_bytes()
    kinds = rb"runtime|driver|sync|event|events|counters|insight|workloadd|scope_profiler|profiler_range"
    named = set(re.findall(rb"(?<=\0)(?:xpu|mtia|cuda|privateuse1|glow)_(?:ccp_)?(?:" + kinds + rb")(?=\0)", library))
    assert len(named) > 8 and {each.decode() for each in named} <= {name for kind in KINDS.values() for name in kind}


main = verb("trace", "import")

LINES = [
    "I0207 16:23:08.1 35803 distributed.cpp:112] [0, 100, 4000.0, 408]",
    "I0207 16:23:08.2 35803 distributed.cpp:112] [1, 10, 4000.0, 139]",
    "I0207 16:23:08.3 35803 distributed.cpp:112] [2, 50, 1e3, 344]",
    "I0207 16:23:08.4 35803 distributed.cpp:112] [3, 5, 1e3, 100]",
]
LATER = [line.replace("4000.0", "2000.0") for line in LINES]
REPOSITORY = Path(__file__).resolve().parents[2]
LOG = REPOSITORY.parent / "shared/data/b-caffe/tmpcomm.log"


def convert(tmp_path: Path, lines: list[str], *more: str) -> int:
    log, given = tmp_path / "a.log", ["--model", "toy, 2 classes", "--hardware", "K80", "--batch", "8"]
    log.write_text("\n".join(lines) + "\n")
    return main([str(log), *given, "--out", str(tmp_path / "toy.json"), *more])


def test_the_last_pass_of_a_log_is_a_trace(tmp_path: Path) -> None:
    assert convert(tmp_path, [*LINES, *LATER], "--source", "a test's log") == 0
    found = trace.load(tmp_path / "toy.json")
    assert (found.name, found.model, found.hardware, found.batch_size) == ("toy", "toy, 2 classes", "K80", 8)
    assert not found.estimate and found.source.startswith("a test's log: backward times measured in the job")
    assert [(each.numel, each.backward_seconds, each.forward_seconds) for each in found.layers] == [
        (110, 0.002, 0.001), (55, 0.001, 0.0005),
    ]  # fmt: skip


@pytest.mark.skipif(not LOG.exists(), reason="needs the B-Caffe logs, shared/data/b-caffe beside the checkout")
def test_the_shipped_trace_comes_from_the_authors_log(tmp_path: Path) -> None:
    given = ["--model", "GoogLeNet", "--hardware", "K80", "--batch", "64", "--out", str(tmp_path / "a.json")]
    assert main([str(LOG), *given]) == 0
    assert trace.load(tmp_path / "a.json").layers == trace.load(trace.find("googlenet_k80")).layers
