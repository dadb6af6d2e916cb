"""The results of a run's calibration, in its folder: layers.json, a trace; exchange.json, what exchanges cost.

Another run can take them instead of measuring (scheduler.profile), which gives it the same buckets, and so the same
bits. The trace is one like any other (docs/traces.md): the model `replay` takes it.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wirebench.costmodel.piecewise import Points
from wirebench.errors import UserError
from wirebench.gradient.schedule import LayerCost
from wirebench.profiling.layer_timer import Profile
from wirebench.simulation import trace
from wirebench.simulation.trace import Trace, TraceLayer
from wirebench.utils import user_files
from wirebench.utils.files import write_atomically
from wirebench.utils.parsing import json_of

LAYERS, EXCHANGE = "layers.json", "exchange.json"
DECISIVE = ("compressor", "collective", "workers")
"""Settings that the costs of an exchange depend on. Engines may differ, so that their bits can be compared."""


def save(
    directory: Path,
    about: Mapping[str, Any],
    shapes: Sequence[tuple[str, tuple[int, ...]]],
    profile: Profile,
    points: Points,
) -> None:
    """Write both files, the second where exchanges were measured.

    about   name, model, hardware, batch_size, source and torch of the trace; `exchange`: what was exchanged, and how
    shapes  (name, shape) of the layers' parameters, in backward order
    points  (elements, seconds) of exchanges; empty where none were measured
    """
    known = {key: value for key, value in about.items() if key != "exchange"}
    Trace(estimate=False, layers=layers_of(profile, shapes), **known).save(directory / LAYERS)
    if points:
        table = {**about["exchange"], "points": points}
        write_atomically(directory / EXCHANGE, json.dumps(table, indent=1) + "\n")


def layers_of(profile: Profile, shapes: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[TraceLayer, ...]:
    """The layers of a trace, in forward order; `shapes`: (name, shape) of each parameter, in backward order."""
    rows = zip(shapes, profile.forward, profile.ready, (0.0, *profile.ready), strict=False)
    layers = [
        TraceLayer(name, math.prod(shape), fore, ready - last, shape) for (name, shape), fore, ready, last in rows
    ]
    return tuple(layers[::-1])


def load(directory: Path, layers: Sequence[LayerCost], exchange: Mapping[str, Any]) -> tuple[list[LayerCost], Points]:
    """The layers with their seconds, and the costs of exchanges, as `save` wrote them into `directory`.

    exchange  what is exchanged, and how: the file must have the same value for every key in DECISIVE
    Raises UserError, naming scheduler.profile, for files that cannot be read or are of another model or exchange.
    """
    where = "scheduler.profile"
    traced = {layer.name: layer for layer in trace.load(directory / LAYERS).layers if layer.numel}
    if {(layer.name, layer.numel) for layer in layers} != {(name, each.numel) for name, each in traced.items()}:
        raise UserError(f"{where}: {directory / LAYERS} is of another model")
    path = directory / EXCHANGE
    text = user_files.read(path, f"{where}: ")
    try:
        table = json_of(text)
        points = [(int(numel), float(cost)) for numel, cost in table["points"]]
        measured = {key: table[key] for key in DECISIVE}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{where}: {path} is not what a run writes ({error})") from error
    if not points or len({numel for numel, _ in points}) < len(points):
        raise UserError(f"{where}: {path}: points: needs one for each size, at least one")
    if not all(math.isfinite(cost) and cost >= 0 and numel > 0 for numel, cost in points):
        raise UserError(f"{where}: {path}: points: need sizes above 0 and seconds from 0 on")
    for key, value in measured.items():
        if value != exchange[key]:
            raise UserError(
                f"{where}: {path} is of another exchange: {key} was {value!r}, here it is {exchange[key]!r}"
            )
    return [layer._replace(backward_seconds=traced[layer.name].backward_seconds) for layer in layers], points
