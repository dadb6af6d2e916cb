"""A training step of any composition on any network, without running it.

The scheduler's own rule cuts the model, the compressor's own generator asks for what it needs, every request is priced
by the plan that would serve it, and the messages are laid beside the trace's computation (simulate_step.py).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wirebench import collectives
from wirebench.errors import UserError
from wirebench.exchange_profile import spans
from wirebench.lane import Exchanger
from wirebench.layout import Layer
from wirebench.networks import Network, cluster
from wirebench.piecewise import Piecewise
from wirebench.pricing import Pricer
from wirebench.requests import Sum
from wirebench.schedule import LayerCost, Partitioner
from wirebench.simulate_step import Duration, Passes, Step, simulate_step
from wirebench.sizing import Asked, Sizes
from wirebench.timeline import ALL_GATHER, Timeline
from wirebench.topology import Topology
from wirebench.trace import Trace

Compressing = Callable[[int], float]
"""Seconds that a compressor works on so many elements."""


@dataclass(frozen=True)
class Simulated:
    """One composition on one network.

    step        its time, and the messages' spans
    groups      of layers, in backward order
    elements    of every message
    num_bytes   that a rank hands over in a step; wire_bytes: that it sends, where nothing travels twice
    compress, communicate  seconds of all messages together, hidden or not
    alone       seconds of a step that exchanges nothing
    """

    step: Step
    groups: tuple[range, ...]
    elements: tuple[int, ...]
    num_bytes: float
    wire_bytes: float
    compress: float
    communicate: float
    alone: float

    @property
    def efficiency(self) -> float:
        """Share of the workers' throughput that is left: the step alone over the step (MG-WFBP, Eq. 4)."""
        return self.alone / self.step.seconds


def simulate(
    trace: Trace,
    scheduler: Partitioner,
    compressor: Callable[[], Exchanger],
    collective: str,
    network: Topology | Network,
    workers: int | None = None,
    *,
    dense_below: int = 0,
    compressing: Compressing | None = None,
) -> Simulated:
    """One step of `trace` on `workers` ranks that take part in `network`.

    scheduler    that cuts, e.g. schedulers.build("optimal")
    compressor   makes one, as compressors.build does, e.g. lambda: compressors.build("topk", dense_below=0)
    collective   by name: one of wirebench.collectives, or native
    network      the ranks' topology, or what lies between machines of one worker each (wirebench.networks)
    dense_below  tensors of fewer elements are not compressed
    compressing  seconds that the compressor works on so many elements; none: no time
    Many schedules of one composition are cheaper together: Simulator. Raises UserError for a network that lacks
    speeds, for a number of workers that is not the topology's, and for a collective that does not exist.
    """
    if isinstance(network, Network):
        if workers is None or workers < 1:
            raise UserError(f"workers: {workers}; a network needs to be told how many, at least 1")
        network = cluster(network, workers)
    if workers not in (None, network.size):
        raise UserError(f"workers: {workers}, but the topology has {network.size}")
    if not all(branch.links for branch in network.branches.values()):
        raise UserError("network: the topology does not say how fast its links are")
    pricer = Pricer(collectives.build(collective), collective, network)
    return Simulator(trace, Sizes(compressor, network.size, dense_below), compressing or free, pricer).step(scheduler)


class Simulator:
    """Steps of one model, compressed in one way, on one network, under any schedule.

    sizes        what the compressor asks for; compressing: seconds that it takes for a bucket of so many elements
    pricer       the network with its collective
    Buckets are priced once, whichever schedules ask for them.
    """

    def __init__(self, trace: Trace, sizes: Sizes, compressing: Compressing, pricer: Pricer) -> None:
        assert sizes.size == pricer.topology.size, f"{sizes.size} workers, {pricer.topology.size} ranks"
        self.layers, self.passes = layers_of(trace), passes_of(trace)
        self.compressing, self.pricer = compressing, pricer
        self._sizes = sizes
        self._known: dict[tuple[int, int], list[Asked]] = {}

    def step(self, scheduler: Partitioner) -> Simulated:
        """One step under this schedule."""
        layers = self.costs()
        groups = scheduler.partition(layers, self._cost if scheduler.needs_profile else free)
        asked = [self._asked(group) for group in groups]
        compress = [self.compressing(self._numel(group)) for group in groups]
        price = _in_halves if scheduler.mode == "split" else _whole
        durations = [price(self.pricer, each, own) for each, own in zip(asked, compress, strict=True)]
        step = simulate_step(self.passes, groups, scheduler.mode, durations)
        return Simulated(
            step,
            tuple(groups),
            tuple(self._numel(group) for group in groups),
            sum(request.num_bytes for each in asked for request in each),
            sum(request.sent(self.pricer.topology.size) for each in asked for request in each),
            sum(compress),
            sum(d.seconds + d.copy_seconds for d in durations) - sum(compress),
            self.passes.seconds,
        )

    def costs(self) -> list[LayerCost]:
        """The layers as a scheduler sees them."""
        ready = (0.0, *self.passes.ready)
        pairs = zip(self.layers, ready, self.passes.ready, strict=False)
        return [LayerCost(layer.name, layer.numel, now - before) for layer, before, now in pairs]

    @functools.cached_property
    def _cost(self) -> Piecewise:
        """Of an exchange by its elements: that of the runs of layers that a job would try (exchange_profile.py)."""
        points = []
        for group in spans(tuple(layer.numel for layer in self.layers)):
            duration = _whole(self.pricer, self._asked(group), self.compressing(self._numel(group)))
            points.append((self._numel(group), duration.seconds))
        return Piecewise(points)

    def _numel(self, group: range) -> int:
        return self.layers[group.stop - 1].stop - self.layers[group.start].start

    def _asked(self, group: range) -> list[Asked]:
        key = (group.start, group.stop)
        if key not in self._known:
            self._known[key] = self._sizes.of(self.layers[group.start : group.stop])
        return self._known[key]


def layers_of(trace: Trace) -> tuple[Layer, ...]:
    """The trace's parameters in backward order."""
    layers, start = [], 0
    for layer in reversed(trace.layers):
        if layer.numel:
            shape = layer.shape or (layer.numel,)
            layers.append(Layer(layer.name, start, start + layer.numel, len(shape), shape[0] if shape else 1))
            start += layer.numel
    return tuple(layers)


def passes_of(trace: Trace) -> Passes:
    """The trace's computation.

    The time of layers without parameters belongs to the gradient that comes next, in the forward pass to the layer
    after them (at the end, to the one before).
    """
    forward, ready, now, waiting = [], [], 0.0, 0.0
    for layer in reversed(trace.layers):
        now += layer.backward_seconds
        if layer.numel:
            ready.append(now)
            forward.append(layer.forward_seconds + waiting)
            waiting = 0.0
        elif forward:
            forward[-1] += layer.forward_seconds
        else:
            waiting += layer.forward_seconds
    return Passes(tuple(forward), tuple(ready), now)


def draw(simulated: Simulated, passes: Passes, timeline: Timeline) -> None:
    """The step as a picture, in the format of a real run's."""
    step = simulated.step
    timeline.draw("compute", "forward", 0.0, step.backward)
    timeline.draw("compute", "backward", step.backward, step.backward + passes.backward)
    for span in step.spans:
        # The all-gather under the next forward pass is drawn where the step before has left it: under this one.
        name, shift = (f" {ALL_GATHER}", step.seconds) if span.half == "copy" else ("", 0.0)
        begin, end, ready = (max(0.0, at - shift) for at in (span.start, span.end, span.ready))
        elements = simulated.elements[span.bucket]
        timeline.draw("exchange", f"bucket {span.bucket}{name}", begin, end, ready=ready, elements=elements)


def _whole(pricer: Pricer, asked: Sequence[Asked], compress: float) -> Duration:
    """A bucket's requests, one after the other."""
    return Duration(compress + sum(pricer.seconds(each) for each in asked))


def _in_halves(pricer: Pricer, asked: Sequence[Asked], compress: float) -> Duration:
    """The same; its first sum is left half done, and all that follows it waits too, as in a job (split.py).

    What the compressor works is counted before, though some of it comes after that sum.
    """
    place = next((number for number, each in enumerate(asked) if each.kind is Sum), None)
    if place is None:
        return _whole(pricer, asked, compress)
    first, second = pricer.halves(asked[place])
    before, after = (sum(map(pricer.seconds, each)) for each in (asked[:place], asked[place + 1 :]))
    return Duration(compress + before + first, second + after)


def free(numel: int) -> float:
    """No time at all, whatever the elements."""
    return 0.0
