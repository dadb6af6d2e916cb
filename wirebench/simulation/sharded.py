"""A model that FSDP shards within pods, as the exchange between its replicas sees it.

FSDP gathers a unit's parameters before its forward pass and again before its backward pass, and reduces and scatters
its gradient. Of N parameters on S ranks, each rank sends 3 N (S - 1)/S in a step by NCCL and 4 N (S - 1)/S by Gloo.
An all-reduce among W ranks sends 2 N (W - 1)/W. The unit that holds the rest of the model is gathered once.
Between pods only gradients of N / S elements travel.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import ceil
from typing import NamedTuple

from wirebench.costmodel.played_exchange import RequestSize
from wirebench.costmodel.request_cost import Pricer
from wirebench.exchange.pipeline import Passes
from wirebench.gradient.flat import FLOAT_BYTES
from wirebench.gradient.requests import Gather, Sum
from wirebench.simulation.trace import Trace, TraceLayer


class Backend(NamedTuple):
    """What carries FSDP's messages.

    name      as torch.distributed calls it
    overlaps  messages run beside the computation; else one waits for the other
    summed    elements that a rank sends for each N (S - 1)/S of a reduce-scatter
    """

    name: str
    overlaps: bool
    summed: int

    @property
    def volume(self) -> str:
        """The elements that a rank sends in a step, of N parameters on S ranks."""
        return f"{2 + self.summed} N (S - 1)/S"


NCCL = Backend("NCCL", True, 1)
GLOO = Backend("Gloo", False, 2)
"""Its reduce-scatter is an all-reduce of which each rank keeps its share (ProcessGroupGloo.cpp, pytorch #149869).
`tests/dropin/pods_sums.py` counts the bytes, with torch 2.15."""


@dataclass(frozen=True)
class ShardedTrace(Trace):
    """One rank's shards of a model: the layers of the rest of the model, then of each unit, in forward order.

    passes        computation of a step with its waits for FSDP; gradients are ready when their unit's are reduced
    units         runs of layers in backward order that FSDP reduces together
    within_bytes  that a rank sends to its pod in a step
    """

    passes: Passes = field(default_factory=lambda: Passes((), (), 0.0))
    units: tuple[range, ...] = ()
    within_bytes: float = 0.0

    __hash__ = Trace.__hash__


@dataclass(frozen=True)
class UnitLayers:
    """Layers that FSDP gathers and reduces together; rest: what is in no list of modules."""

    layers: tuple[TraceLayer, ...]
    rest: bool

    @property
    def num_bytes(self) -> int:
        """Return the bytes of its fp32 gradient."""
        return FLOAT_BYTES * sum(layer.numel for layer in self.layers)


Seconds = dict[UnitLayers, float]


def sharded(trace: Trace, shards: int, within: Pricer, backend: Backend) -> ShardedTrace:
    """The trace of a rank of pods of `shards` ranks.

    within   prices what FSDP sends between the ranks of a pod
    backend  what carries it: NCCL between GPUs, Gloo between CPUs
    A unit is a member of a list of modules, by the number in its name (blocks.3); the rest of the model is another one.
    """
    units = units_of(trace)
    # As FSDP2 has it when a list's members and then the model are sharded.
    order = [unit for unit in units if unit.rest] + [unit for unit in units if not unit.rest]
    gathers = {unit: _gather(unit.num_bytes, shards, within) for unit in order}
    sums = {unit: _reduce_scatter(unit.num_bytes, within, backend) for unit in order}
    forward = _forward(trace, order, gathers, backend.overlaps)
    reduced, backward = _backward(trace, order, gathers, sums, backend.overlaps)
    mine = {unit: [_shard(layer, shards) for layer in unit.layers if layer.numel] for unit in order if unit.num_bytes}
    runs: list[range] = []
    ready: list[float] = []
    for unit, layers in reversed(mine.items()):
        runs.append(range(len(ready), len(ready) + len(layers)))
        ready += [max([reduced[unit], *ready[-1:]])] * len(layers)
    times = {unit: (1 if unit.rest else 2) + backend.summed for unit in order}
    sent = sum(times[unit] * unit.num_bytes * (shards - 1) / shards for unit in order)
    passes = Passes((forward, *[0.0] * (len(ready) - 1)), tuple(ready), max(backward, *ready))
    known = {each.name: getattr(trace, each.name) for each in fields(Trace)}
    known["layers"] = tuple(layer for layers in mine.values() for layer in layers)
    return ShardedTrace(**known, passes=passes, units=tuple(runs), within_bytes=sent)


def _gather(num_bytes: int, shards: int, within: Pricer) -> float:
    return within.seconds(RequestSize(Gather, num_bytes / shards, num_bytes / shards)) if num_bytes else 0.0


def _reduce_scatter(num_bytes: int, within: Pricer, backend: Backend) -> float:
    if not num_bytes:
        return 0.0
    whole = RequestSize(Sum, num_bytes, num_bytes)
    return within.seconds(whole) if backend.summed > 1 else within.halves(whole).seconds


def units_of(trace: Trace) -> list[UnitLayers]:
    """The units in the order in which the forward pass comes to them."""
    members: dict[str, list[TraceLayer]] = {}
    for layer in trace.layers:
        members.setdefault(_member(layer.name), []).append(layer)
    return [UnitLayers(tuple(layers), not name) for name, layers in members.items()]


def _member(name: str) -> str:
    """The member of a list of modules to which a parameter belongs; "" for none."""
    words = name.split(".")
    place = next((place for place, word in enumerate(words) if word.isdigit()), None)
    return "" if place is None else ".".join(words[: place + 1])


def _shard(layer: TraceLayer, shards: int) -> TraceLayer:
    """The first rank's rows, of which it has the most; without a shape its elements."""
    if not layer.shape:
        return replace(layer, numel=ceil(layer.numel / shards))
    rows = ceil(layer.shape[0] / shards)
    return replace(layer, numel=layer.numel // layer.shape[0] * rows, shape=(rows, *layer.shape[1:]))


def _stays(trace: Trace, of: dict[str, UnitLayers], backwards: bool) -> Iterator[tuple[UnitLayers, float]]:
    """Units in the order of a pass, with the seconds of each stay in them."""
    unit: UnitLayers | None = None
    seconds = 0.0
    for layer in reversed(trace.layers) if backwards else trace.layers:
        now = of[_member(layer.name)]
        if unit is not None and now is not unit:
            yield unit, seconds
            seconds = 0.0
        unit, seconds = now, seconds + (layer.backward_seconds if backwards else layer.forward_seconds)
    assert unit is not None, "a trace has layers"
    yield unit, seconds


def _by_member(order: Sequence[UnitLayers]) -> dict[str, UnitLayers]:
    return {_member(unit.layers[0].name): unit for unit in order}


def _forward(trace: Trace, order: Sequence[UnitLayers], gathers: Seconds, overlaps: bool) -> float:
    """Seconds of the forward pass.

    The rest of the model is gathered first. Where messages overlap, a unit is gathered while the one before computes.
    """
    now = wire = sum(gathers[unit] for unit in order if unit.rest)
    begun = now
    gathered = {unit for unit in order if unit.rest}
    for unit, seconds in _stays(trace, _by_member(order), backwards=False):
        if unit not in gathered:
            gathered.add(unit)
            wire = max(wire, begun if overlaps else now) + gathers[unit]
            now = max(now, wire)
            begun = now
        now += seconds
    return now


def _backward(
    trace: Trace,
    order: Sequence[UnitLayers],
    gathers: Seconds,
    sums: Seconds,
    overlaps: bool,
) -> tuple[Seconds, float]:
    """When each unit's gradient is reduced, from the begin of the backward pass; and how long the pass computes.

    The rest of the model is still gathered, and its gradient is reduced last. Where messages overlap, a unit is
    gathered while the one before computes, and its gradient is reduced behind the next unit's gather.
    """
    stays = list(_stays(trace, _by_member(order), backwards=True))
    last = {unit: place for place, (unit, _) in enumerate(stays)}
    gathered = {unit for unit in order if unit.rest}
    now = wire = begun = 0.0
    reduced: Seconds = {}
    done: list[tuple[UnitLayers, float]] = []
    for place, (unit, seconds) in enumerate(stays):
        if unit not in gathered:
            gathered.add(unit)
            wire = max(wire, begun if overlaps else now) + gathers[unit]
            now = max(now, wire)
        for each, since in done:
            wire = reduced[each] = max(wire, since) + sums[each]
        done.clear()
        begun = now
        now += seconds
        if place < last[unit] or unit.rest:
            continue
        if overlaps:
            done.append((unit, now))
        else:
            now = wire = reduced[unit] = now + sums[unit]
    for each, since in [*done, *((unit, now) for unit in order if unit.rest)]:
        wire = reduced[each] = max(wire, since) + sums[each]
    return reduced, now
