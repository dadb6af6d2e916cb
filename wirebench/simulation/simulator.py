"""A training step of any composition on any network, without running it.

The scheduler's own rule cuts the model into buckets, and the compressor's own generator makes its requests. Every
request is priced by the plan that would serve it. Then the messages are overlapped with the trace's computation
(pipeline.py).
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wirebench import collectives
from wirebench.costmodel.piecewise import Piecewise, spans
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.request_sizes import Sizes
from wirebench.errors import UserError
from wirebench.exchange.pipeline import Passes, Starts, Step
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.conformance import method_of
from wirebench.gradient.contract import Compressor
from wirebench.gradient.flat import FLOAT_BYTES, Layer
from wirebench.gradient.schedule import LayerCost
from wirebench.simulation.sharded import ShardedTrace
from wirebench.simulation.shared_cores import beside_computing, handled, share
from wirebench.simulation.stages import (
    AS_PREDICTED,
    COMPRESS,
    Factors,
    Stage,
    Work,
    duration,
    in_halves,
    whole,
    work_of,
)
from wirebench.simulation.trace import Trace
from wirebench.telemetry.timeline import ALL_GATHER, Timeline
from wirebench.topology.presets import Network, cluster
from wirebench.topology.tree import Topology

Compressing = Callable[[int], float]
"""compressing(numel): seconds that a compressor works on a bucket of `numel` elements."""


@dataclass(frozen=True)
class Simulated:
    """One simulated composition on one network. Of an outer schedule, whose steps differ, the mean of its steps.

    step         its time, and the messages' spans
    starts       when messages may start, by the scheduler's driver
    groups       the buckets: ranges of layers, in backward order
    elements     of each bucket
    stages       of each bucket's exchange
    num_bytes    bytes that a rank hands to the network in a step
    wire_bytes   bytes that it sends, in sums' wire format, by collectives in which nothing travels twice
    compress     seconds of the compressor's work on all buckets, hidden or not
    communicate  seconds of all requests, hidden or not
    alone        seconds of a step that exchanges nothing, nor handles gradients
    passes       its computation; where cores are shared, as long as it takes beside the exchange
    """

    step: Step
    starts: Starts
    groups: tuple[range, ...]
    elements: tuple[int, ...]
    stages: tuple[tuple[Stage, ...], ...]
    num_bytes: float
    wire_bytes: float
    compress: float
    communicate: float
    alone: float
    passes: Passes

    @property
    def efficiency(self) -> float:
        """Share of the workers' throughput that is left: the step alone over the step (MG-WFBP, Eq. 4)."""
        return self.alone / self.step.seconds


def simulate(
    trace: Trace,
    scheduler: Scheduler,
    compressor: Callable[[], Compressor],
    collective: str,
    network: Topology | Network,
    workers: int | None = None,
    *,
    dense_below: int = 0,
    compressing: Compressing | None = None,
    decoding: Compressing | None = None,
) -> Simulated:
    """One step of `trace` on `workers` ranks of `network`.

    scheduler    e.g. schedulers.build("optimal")
    compressor   makes a compressor, e.g. lambda: compressors.build("topk", dense_below=0)
    collective   by name: one of wirebench.collectives, or native
    network      the ranks' topology, or what lies between machines of one worker each (wirebench.topology.presets)
    dense_below  tensors of one dimension or of fewer elements are not compressed; 0: all are
    compressing  seconds that the compressor works on a bucket, by its elements; None: no time
    decoding     how many of these come after the last request is answered; None: none
    Many schedules of one composition are cheaper together: Simulator. Raises UserError for a network that lacks
    speeds, for a number of workers that is not the topology's, and for a collective that does not exist.
    """
    if isinstance(network, Network):
        if workers is None or workers < 1:
            raise UserError(f"workers: {workers}; a network needs a number of workers, at least 1")
        network = cluster(network, workers)
    if workers not in (None, network.size):
        raise UserError(f"workers: {workers}, but the topology has {network.size}")
    if not all(branch.links for branch in network.branches.values()):
        raise UserError("network: the topology does not say how fast its links are")
    pricer = Pricer(collectives.build(collective), network)
    sizes = Sizes(lambda: method_of(compressor()), network.size, dense_below)
    return Simulator(trace, sizes, compressing or free, pricer, decoding).step(scheduler)


class Simulator:
    """Steps of one model, compressed in one way, on one network, under any schedule.

    sizes        the compressor's requests by bucket
    compressing  seconds that the compressor works on a bucket, by its elements
    pricer       the network with its collective
    decoding     how many of these seconds come after the last request is answered; None: none
    threads      of a rank that compute the passes on the cores that its exchange needs; 0: the passes take no core's
                 time, as with a GPU or a replayed model
    A bucket's requests are counted once, for all schedules that make it.
    """

    def __init__(
        self,
        trace: Trace,
        sizes: Sizes,
        compressing: Compressing,
        pricer: Pricer,
        decoding: Compressing | None = None,
        threads: int = 0,
    ) -> None:
        assert sizes.size == pricer.topology.size, f"{sizes.size} workers, {pricer.topology.size} ranks"
        self.layers, self.passes, self._layer_costs = layers_of(trace), passes_of(trace), costs_of(trace)
        self._units = trace.units if isinstance(trace, ShardedTrace) else ()
        self.pricer = pricer
        decoding = decoding or free
        # All ranks compress at the same time; where they share cores they are in one another's way.
        processor = pricer.topology.processor
        crowded = processor.crowded(pricer.topology.size)
        self.compressing: Compressing = lambda numel: crowded * processor.slower_by(numel) * compressing(numel)
        self._decoding: Compressing = lambda numel: crowded * processor.slower_by(numel) * decoding(numel)
        self._computing = threads > 0
        self._together = processor.together_speed(pricer.topology.size, max(threads, 1))
        # Hosts of their own have cores to spare for it; passes that the cores compute have it in them.
        spared = self._computing or not processor.cores
        handling = 0.0 if spared else crowded * processor.gradient_seconds_per_byte * FLOAT_BYTES
        self._handling = [handling * layer.numel for layer in self.layers] if handling else []
        self._sizes, self._requests = sizes, sizes.of_spans(self.layers)

    def step(self, scheduler: Scheduler) -> Simulated:
        """One step under this schedule."""
        layers = self.costs()
        groups = self._groups(scheduler, layers)
        requests = [self._requests(group) for group in groups]
        compress = [self._work(group) for group in groups]
        driver = scheduler.driver
        cut = in_halves if driver.halves else whole
        stages = [cut(self.pricer, each, work) for each, work in zip(requests, compress, strict=True)]
        steps, _ = driver.rhythm(scheduler)
        step, passes = self._timed(scheduler, groups, stages, AS_PREDICTED)
        return Simulated(
            step,
            driver.starts,
            tuple(groups),
            tuple(self._numel(group) for group in groups),
            tuple(map(tuple, stages)),
            sum(request.num_bytes for each in requests for request in each) / steps,
            sum(self.pricer.sent(request) for each in requests for request in each) / steps,
            sum(work.before + work.after for work in compress) / steps,
            sum(part.seconds for each in stages for part in each if part.name != COMPRESS) / steps,
            self.passes.seconds,
            passes,
        )

    def _groups(self, scheduler: Scheduler, layers: Sequence[LayerCost]) -> list[range]:
        """The scheduler's cut; a sharded model's is made of units, as wirebench.compress_replicas makes it."""
        seen = [_together(layers[unit.start : unit.stop]) for unit in self._units] or layers
        groups = scheduler.partition(seen, self._cost if scheduler.needs_profile else free)
        if [place for group in groups for place in group] != list(range(len(seen))):
            name = type(scheduler).__name__
            raise UserError(f"scheduler.name: {name!r}: its groups must cover the layers in order, got {groups}")
        if not self._units:
            return groups
        return [range(self._units[group.start].start, self._units[group.stop - 1].stop) for group in groups]

    def stretched(self, found: Simulated, scheduler: Scheduler, factors: Factors) -> Step:
        """The step that `scheduler` makes of the same buckets, with the times of its parts multiplied by `factors`."""
        return self._timed(scheduler, found.groups, found.stages, factors)[0]

    def costs(self) -> list[LayerCost]:
        """The layers as a scheduler sees them."""
        return list(self._layer_costs)

    @functools.cached_property
    def _cost(self) -> Piecewise:
        """The cost of an exchange by its elements, from the sizes that a job would measure (exchange_timer.py)."""
        points = []
        for group in spans(tuple(layer.numel for layer in self.layers)):
            stages = whole(self.pricer, self._requests(group), self._work(group))
            points.append((self._numel(group), duration(stages).seconds))
        return Piecewise(points)

    def _timed(
        self, scheduler: Scheduler, groups: Sequence[range], stages: Sequence[Sequence[Stage]], factors: Factors
    ) -> tuple[Step, Passes]:
        """The step, and its computation as long as it takes beside the exchange."""
        passes, durations = self.passes.times(factors.compute), [duration(each, factors) for each in stages]
        beside, handling = passes, [factors.compute * seconds for seconds in self._handling]
        # Gradients are exchanged, and compressed, while others are made.
        within = scheduler.driver.starts == "gradient"
        if self._computing and self._together < 1 and within:
            works = [self._on_cores(each, factors) for each in stages]
            beside, durations = beside_computing(passes, groups, durations, works, self._together)
        elif any(handling) and within:
            works = [work_of(each, factors) for each in stages]
            beside, durations = share(passes, groups, durations, works, handling, self._together)
        elif any(handling):
            beside = handled(passes, handling)
        step = scheduler.driver.simulate(scheduler, beside, groups, durations)
        if beside is passes:
            return step, passes
        # By what the backward pass takes longer than computation, gradients and what is beside them add to the step.
        return step._replace(exposed=step.exposed + beside.seconds - passes.seconds), beside

    def _on_cores(self, stages: Sequence[Stage], factors: Factors) -> Work:
        """Work of a rank's processor for an exchange: the compressor's, and a call for each request."""
        work = work_of(stages, factors)
        asked = sum(stage.name != COMPRESS and not stage.copy for stage in stages)
        called = min(asked * self.pricer.call_seconds, duration(stages).seconds - sum(work_of(stages)))
        return work._replace(before=work.before + factors.messages * called)

    def _work(self, group: range) -> Work:
        """The compressor's work for a bucket."""
        numel = self._numel(group)
        after = self._decoding(numel)
        return Work(self.compressing(numel) - after, after)

    def _numel(self, group: range) -> int:
        return self.layers[group.stop - 1].stop - self.layers[group.start].start


@functools.lru_cache(maxsize=8)
def layers_of(trace: Trace) -> tuple[Layer, ...]:
    """The trace's parameters in backward order."""
    layers, start = [], 0
    for layer in reversed(trace.layers):
        if layer.numel:
            shape = layer.shape or (layer.numel,)
            layers.append(Layer(layer.name, start, start + layer.numel, len(shape), shape[0] if shape else 1))
            start += layer.numel
    return tuple(layers)


@functools.lru_cache(maxsize=8)
def passes_of(trace: Trace) -> Passes:
    """The trace's computation, by layers with parameters.

    In the backward pass the time of layers without parameters delays the gradient that comes next. In the forward pass
    it is added to the next layer with parameters; behind the last such layer, to that one. A sharded model has its own.
    """
    if isinstance(trace, ShardedTrace):
        return trace.passes
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


@functools.lru_cache(maxsize=8)
def costs_of(trace: Trace) -> tuple[LayerCost, ...]:
    """The trace's layers with parameters as a scheduler sees them."""
    ready = passes_of(trace).ready
    pairs = zip(layers_of(trace), (0.0, *ready), ready, strict=False)
    return tuple(LayerCost(layer.name, layer.numel, now - before) for layer, before, now in pairs)


def _together(layers: Sequence[LayerCost]) -> LayerCost:
    """Layers that a scheduler sees as one."""
    numel, seconds = sum(each.numel for each in layers), sum(each.backward_seconds for each in layers)
    return LayerCost(layers[0].name, numel, seconds)


def draw(simulated: Simulated, timeline: Timeline) -> None:
    """The step as a picture, in the format of a real run's."""
    step = simulated.step
    timeline.draw("compute", "forward", 0.0, step.backward)
    timeline.draw("compute", "backward", step.backward, step.backward + simulated.passes.backward)
    for span in step.spans:
        # The all-gather under the next forward pass is drawn where the step before has left it: under this one.
        name, shift = (f" {ALL_GATHER}", step.seconds) if span.half == "copy" else ("", 0.0)
        begin, end, ready = (max(0.0, at - shift) for at in (span.start, span.end, span.ready))
        elements = simulated.elements[span.bucket]
        timeline.draw("exchange", f"bucket {span.bucket}{name}", begin, end, ready=ready, elements=elements)


def free(numel: int) -> float:
    """0 seconds, for any number of elements: the cost of nothing."""
    return 0.0
