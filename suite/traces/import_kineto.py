"""Make a trace of a PyTorch profiler's file: of any training loop, which need not know the suite."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from suite.traces import kineto
from suite.traces.kineto import MICROSECOND, BackwardPass
from wirebench.errors import UserError
from wirebench.simulation.trace import Trace, TraceLayer


def convert(options: argparse.Namespace) -> Trace:
    """The trace of the file's steps: medians of all passes but the first, which warms up; UserError says what lacks."""
    path: Path = options.log
    table = kineto.load(path)
    hardware = options.hardware or kineto.device(table)
    if not hardware:
        raise UserError("--hardware: the file names no GPU; say what it was recorded on")
    passes = _alike(path, kineto.backward_passes(path, table))
    steps = passes[1:] or passes
    ready, forward = (np.median([times(each) for each in steps], axis=0) for times in (_ready, _forward))
    backward = np.diff(np.maximum.accumulate(ready), prepend=0.0)
    layers = [
        TraceLayer(name, int(np.prod(each.shape, dtype=np.int64)), _rounded(f), _rounded(b), each.shape)
        for name, each, f, b in zip(_names(passes[0]), passes[0].gradients, forward, backward, strict=True)
    ]
    made = f"{options.source or path.name} of torch.profiler: medians of {len(steps)} passes"
    return Trace(
        options.out.stem,
        options.model,
        hardware,
        options.batch,
        False,
        made,
        options.torch,
        tuple(layers[::-1]),
        options.unit,
    )


def _alike(path: Path, passes: Sequence[BackwardPass]) -> list[BackwardPass]:
    """The passes with the gradients that most of them have, in the same order."""
    if not passes:
        raise UserError(f"{path}: no backward pass in it is whole")
    kinds = Counter(tuple(each.shape for each in one.gradients) for one in passes)
    usual, count = kinds.most_common(1)[0]
    if 2 * count < len(passes):
        raise UserError(f"{path}: its {len(passes)} backward passes have gradients in {len(kinds)} different orders")
    return [one for one in passes if tuple(each.shape for each in one.gradients) == usual]


def _ready(one: BackwardPass) -> list[float]:
    """Seconds from the begin of the backward pass until each gradient was there."""
    return [max(0.0, each.ready - one.begin) * MICROSECOND for each in one.gradients]


def _forward(one: BackwardPass) -> list[float]:
    """Seconds of each gradient's layer in the forward pass: from its use until the next one's, then the loss.

    Tensors that are used at once, such as a weight and its bias, share their time equally.
    """
    begins = [one.begin if each.used is None else each.used for each in one.gradients]
    marks = sorted({*begins, one.begin})
    marks[0] = min(one.forward, marks[0])
    spans = dict(zip(sorted({*begins, one.begin}), np.diff([*marks, one.begin]), strict=True))
    sharing = Counter(begins)
    return [max(0.0, float(spans[begin])) / sharing[begin] * MICROSECOND for begin in begins]


def _names(one: BackwardPass) -> list[str]:
    """A name for each gradient: the kind of its operation, and its place in the forward pass. The file has none."""
    count = len(one.gradients)
    return [f"{each.node.lower()}{count - place:03d}.weight" for place, each in enumerate(one.gradients)]


def _rounded(seconds: float) -> float:
    return round(float(seconds), 9)
