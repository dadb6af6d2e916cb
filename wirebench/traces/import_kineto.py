"""Make a trace of a PyTorch profiler's file: of any training loop, which need not know the suite."""

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from wirebench.errors import UserError
from wirebench.simulation.trace import Trace, TraceLayer
from wirebench.traces import kineto, profiler_file
from wirebench.traces.kineto import MICROSECOND, BackwardPass
from wirebench.traces.profiler_file import Recording

CLOCK_SECONDS = 1e-5
"""What times may be off by: some files have whole microseconds."""


def convert(options: argparse.Namespace, text: bytes) -> Trace:
    """The trace of the file's steps: medians of all passes but the first, which warms up; UserError says what lacks.

    A second pass through a graph has no forward pass of its own, and says nothing of how long that takes.
    """
    path: Path = options.log
    recording = profiler_file.load(path, text)
    hardware = options.hardware or recording.hardware
    if not hardware:
        raise UserError("--hardware: the file names no GPU; say what it was recorded on")
    layers, count = layers_of(path, recording)
    made = f"{options.source or path.name} of torch.profiler: medians of {count} passes"
    return Trace(
        options.out.stem,
        options.model,
        hardware,
        options.batch,
        False,
        made,
        options.torch,
        layers,
        options.unit,
    )


def layers_of(path: Path, recording: Recording) -> tuple[tuple[TraceLayer, ...], int]:
    """The layers of a recording in forward order, and the passes whose medians their times are; UserError as `convert`.

    path  the file's, for errors
    """
    passes = _alike(path, kineto.backward_passes(path, recording))
    _check_times(path, passes)
    steps = passes[1:] or passes
    begun = [each for each in steps if any(each.forward)] or [each for each in passes if any(each.forward)]
    if not begun:
        raise UserError(f"{path}: no forward operator in it belongs to a backward node; record whole training steps")
    ready = np.median([_ready(each) for each in steps], axis=0)
    forward = np.median([_forward(each) for each in begun], axis=0)
    backward = np.diff(np.maximum.accumulate(ready), prepend=0.0)
    layers = [
        TraceLayer(name, math.prod(each.shape), _rounded(f), _rounded(b), each.shape)
        for name, each, f, b in zip(_names(passes[0]), passes[0].gradients, forward, backward, strict=True)
    ]
    return tuple(layers[::-1]), len(steps)


def _alike(path: Path, passes: Sequence[BackwardPass]) -> list[BackwardPass]:
    """The passes with the gradients that most of them have, in the same order."""
    if not passes:
        raise UserError(f"{path}: no backward pass in it is whole")
    orders = Counter(tuple(each.shape for each in one.gradients) for one in passes)
    usual, count = orders.most_common(1)[0]
    kinds = Counter(tuple(sorted(each.shape for each in one.gradients)) for one in passes).most_common()
    # A part of the usual ones is a step that leaves layers unused; something else, twice, is another model.
    others = [kind for kind, times in kinds[1:] if times > 1 and Counter(kind) - Counter(kinds[0][0])]
    if others or (len(kinds) > 1 and 2 * kinds[1][1] > kinds[0][1]):
        one, other = len(kinds[0][0]), len((others or [kinds[1][0]])[0])
        raise UserError(
            f"{path}: its backward passes are of several models, with {one} and {other} gradients; record the steps "
            "of one of them"
        )
    if 2 * count < len(passes):
        raise UserError(f"{path}: its {len(passes)} backward passes have gradients in {len(orders)} different orders")
    return [one for one in passes if tuple(each.shape for each in one.gradients) == usual]


def _check_times(path: Path, passes: Sequence[BackwardPass]) -> None:
    """Raise UserError if the passes take longer than there is time between the first one's begin and the last's end."""
    taken = sum(sum(_forward(one)) + max(_ready(one)) for one in passes)
    whole = max(each.ready for one in passes for each in one.gradients) - min(one.start for one in passes)
    if taken > whole * MICROSECOND + CLOCK_SECONDS:
        raise UserError(
            f"{path}: its forward and backward passes take {taken:.4g} s in {whole * MICROSECOND:.4g} s: they overlap"
        )


def _ready(one: BackwardPass) -> list[float]:
    """Seconds from the begin of the backward pass until each gradient was there."""
    return [max(0.0, each.ready - one.begin) * MICROSECOND for each in one.gradients]


def _forward(one: BackwardPass) -> list[float]:
    """Seconds of each gradient's layer in the forward pass: from its use to the next one's, waiting left out.

    The first layer has what comes before it, the last one the loss. Tensors that are used at once, such as a weight
    and its bias, share their time equally. Without a use in the recording a tensor has no time, or all of it.
    """
    sharing = Counter(each.used for each in one.gradients if each.used is not None)
    places = sorted(sharing)
    if not places:
        return [sum(one.forward) * MICROSECOND / len(one.gradients)] * len(one.gradients)
    bounds = [0, *places[1:], len(one.forward)]
    spent = {place: sum(one.forward[a:b]) for place, a, b in zip(places, bounds[:-1], bounds[1:], strict=True)}
    return [0.0 if each.used is None else spent[each.used] / sharing[each.used] * MICROSECOND for each in one.gradients]


def _names(one: BackwardPass) -> list[str]:
    """A name for each gradient: the kind of its operation, and its place in the forward pass. The file has none."""
    count = len(one.gradients)
    return [f"{each.node.lower()}{count - place:03d}.weight" for place, each in enumerate(one.gradients)]


def _rounded(seconds: float) -> float:
    return round(float(seconds), 9)
