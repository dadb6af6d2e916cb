"""What a run would save with another compressor: its own step and the other one's, simulated on the link that it had.

The simulation has the run's scheduler, its layers and how long it computed, and the link as its messages found it. What
the backward pass hides stays hidden; what a compressor adds in work is counted (docs/simulation.md).
"""

import copy
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from wirebench import collectives, compressors, schedulers
from wirebench.bench.compressors import parse_compressor
from wirebench.bench.inputs import parse_size
from wirebench.bench.turns import timed_here
from wirebench.collectives.native import is_engines_own
from wirebench.compose.resolve import refuse_workers, resolve, scheduler_of
from wirebench.config.loader import Config, overridden
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.request_sizes import Sizes
from wirebench.diagnose.evidence import Evidence
from wirebench.diagnose.link import FittedLink
from wirebench.errors import UserError
from wirebench.exchange.scheduler import Scheduler
from wirebench.planner import ranges
from wirebench.planner.compositions import (
    compressing,
    lacks_shapes,
    needs_whole,
    sends_no_noise,
    sizes_of,
    sizes_with,
)
from wirebench.simulation.compress_rates import Rates
from wirebench.simulation.roofline import of_hardware
from wirebench.simulation.simulator import Compressing, Simulated, Simulator
from wirebench.simulation.trace import Trace, TraceLayer
from wirebench.topology.presets import Network, cluster
from wirebench.topology.processor import Processor
from wirebench.topology.tree import Link, Topology
from wirebench.utils import this_machine

ROUNDS = 5
"""Iterations that find a backward pass which, beside the run's exchange, takes as long as the run's did."""
TIMED = 1_000_000
"""Compressors are timed on a bucket of the run's largest size, up to this many elements."""


class Saving(NamedTuple):
    """What a compressor would save: seconds of a step, and the bytes that a rank then sends in a step.

    settings  overrides for train.py
    plain     it rounds each gradient on its own, and keeps no residual
    """

    compressor: str
    settings: tuple[str, ...]
    seconds: float
    wire_bytes: float
    plain: bool = False


class Other:
    """One run with other compressors.

    link  seconds to start a round, and bytes per second that a rank sends, both known
    Raises UserError where the run's config cannot be read here, or where its hardware's memory is not known.
    """

    def __init__(self, evidence: Evidence, link: FittedLink) -> None:
        self.evidence, self.link = evidence, link
        self.config = resolve(overridden(copy.deepcopy(evidence.record["config"]), []))
        if self.config.collective.wire:
            raise UserError("collective.wire: how long a plan codes its messages was not measured")
        self.workers = int(evidence.record["world_size"])
        self.trace = _trace(evidence)
        self.scheduler = scheduler_of(self.config)
        self.rates, self.bytes_per_second = _memory(evidence)
        self.processor = self._processor()
        # Those that compute on the cores which the exchange needs, too; a replayed model waits instead.
        waits = self._on_gpu or bool(self.config.model.options.get("trace"))
        self.threads = 0 if waits else int(evidence.ranks[0].get("threads") or 1)
        self._take_out_own_exchange()

    def savings(self, densities: Mapping[str, float | None]) -> Iterator[Saving]:
        """Savings of the compressors in `densities` that the run's config accepts and whose cost is known.

        densities  by name; None for a compressor that has none
        """
        own, timed = self._own(), self._timed(densities)
        # No more can be saved than was waited for, and than the backward pass took longer.
        longer = own.passes.seconds - own.alone
        share = min(1.0, (self.evidence.exposed + longer) / own.step.exposed) if own.step.exposed else 0.0
        for name, density in densities.items():
            settings = [f"compressor.name={name}"]
            settings += [] if density is None else [f"compressor.density={density:g}"]
            sizes = sizes_of(name, density, self.trace, self.workers)
            if name != self.config.compressor.name and self._tells(name, sizes):
                config = self._accepted(settings)
                if config is not None and not (needs_whole(name, density) and len(own.groups) > 1):
                    found = self._with(name, sizes, config, timed.get(name))
                    saved = (own.step.exposed - found.step.exposed) * share
                    plain = compressors.class_of(name).keeps == "nothing"
                    yield Saving(name, tuple(settings), saved, found.wire_bytes, plain)

    def break_evens(self, densities: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
        """Bytes per second that a rank sends, by compressor: below them its work takes less time than its bytes save.

        Its work counts as if nothing hid it. Compressors that cost no work, or save no bytes, have none.
        """
        own, timed = self._own(), self._timed(densities)
        for name, density in densities.items():
            sizes = sizes_of(name, density, self.trace, self.workers)
            if self._tells(name, sizes):
                found = self._with(name, sizes, self.config, timed.get(name))
                saved, work = own.wire_bytes - found.wire_bytes, found.compress - own.compress
                if saved > 0 and work > 0:
                    yield name, saved / work

    def merge(self) -> tuple[tuple[int, ...], float]:
        """Elements of the messages that end first of all merges, and seconds of a step that they save."""
        own, merged = self._own(), self._own(schedulers.build("optimal"))
        return merged.elements, own.step.exposed - merged.step.exposed

    def _take_out_own_exchange(self) -> None:
        """Shorten the trace's backward pass until beside the run's own exchange it takes as long as it did."""
        taken = sum(layer.backward_seconds for layer in self.trace.layers)
        for _ in range(ROUNDS):
            beside = self._own().passes.backward
            self.trace = _stretched(self.trace, 1.0, taken / beside if beside else 1.0)

    def _tells(self, name: str, sizes: Sizes) -> bool:
        """Whether the method's work and bytes are known, and its learning rate is the run's.

        Methods that return updates need another one.
        """
        unknown = sizes.by_value or lacks_shapes(sizes, self.trace) or sends_no_noise(sizes, self.trace)
        return self.rates.knows(name) and not compressors.class_of(name).makes_update and not unknown

    def _accepted(self, settings: Sequence[str]) -> Config | None:
        """The run's config with these settings; None where train.py refuses it."""
        try:
            config = resolve(overridden(copy.deepcopy(self.evidence.record["config"]), settings))
            refuse_workers(replace(config, engine=replace(config.engine, workers=self.workers)))
        except UserError:
            return None
        return config

    def _own(self, scheduler: Scheduler | None = None) -> Simulated:
        """The step as it was, or under another scheduler: its compressor works as long as it was measured to."""
        section = self.config.compressor
        below = max(section.dense_below, 0) if self.evidence.layers else 0
        sizes = sizes_with(section.name, section.options, self.workers, below)
        return self._step(self.config, sizes, self._measured, scheduler=scheduler)

    def _measured(self, numel: int) -> float:
        """Seconds of one core that the run's own compressor needs for `numel` elements."""
        whole = self.evidence.phase("compress") / self.trace.numel / self.processor.crowded(self.workers)
        return whole * numel / self.processor.slower_by(numel)

    def _with(
        self, name: str, sizes: Sizes, config: Config, timed: tuple[Compressing, Compressing] | None
    ) -> Simulated:
        if timed is None:
            timed = compressing(self.rates, name, sizes, self.trace, self.bytes_per_second, self.processor)
        seconds, decoded = timed
        if self.config.compressor.name == "none":
            # What a dense exchange has of such work, every exchange has.
            return self._step(config, sizes, lambda numel: seconds(numel) + self._measured(numel), decoded)
        return self._step(config, sizes, seconds, decoded)

    def _timed(self, densities: Mapping[str, float | None]) -> dict[str, tuple[Compressing, Compressing]]:
        """Seconds of a bucket, and seconds after the last answer, by compressor: measured in this call, on one core.

        Empty if the run was on a GPU or on another kind of processor: then the shipped rates are used.
        """
        ran_on = (self.evidence.record["environment"].get("cpu") or {}).get("model")
        sizes = self.evidence.drawn.buckets
        if self._on_gpu or not sizes or ran_on != this_machine.cpu().model:
            return {}
        bucket = parse_size(str(min(max(sizes), TIMED)))
        contenders = [parse_compressor(name, density) for name, density in densities.items()]
        found: dict[str, tuple[Compressing, Compressing]] = {}
        for cell in timed_here(self.workers, [bucket], contenders):
            if not cell.error:
                each = cell.copy / bucket.numel
                whole, last = each * sum(cell.copies.values()), each * cell.copies["decode"]
                found[cell.method] = functools.partial(_in_proportion, whole), functools.partial(_in_proportion, last)
        return found

    def _step(
        self,
        config: Config,
        sizes: Sizes,
        seconds: Compressing,
        decoded: Compressing | None = None,
        scheduler: Scheduler | None = None,
    ) -> Simulated:
        collective = collectives.build(config.collective.name)
        pricer = Pricer(collective, self._topology(is_engines_own(collective)))
        return Simulator(self.trace, sizes, seconds, pricer, decoded, self.threads).step(scheduler or self.scheduler)

    def _topology(self, engines_own: bool) -> Topology:
        """The ranks on the run's link; with `engines_own` the engine's own all-reduce serves sums, a round for each."""
        start, rate = self.link
        assert start is not None and rate is not None
        # What the processor does in a call is in the start-up that the messages had.
        start = max(start - self.processor.call_seconds * self.processor.crowded(self.workers), 0.0)
        # An all-reduce of the engine's counts as one round, and is a ring.
        each = start / (2 * (self.workers - 1)) if engines_own and self._was_engines_own else start
        here = max(int(rank.get("ranks_on_host", 1)) for rank in self.evidence.ranks)
        made = cluster(Network(each, rate, "the run's messages"), self.workers, here)
        return replace(made, native=(Link(start, rate),) if engines_own else (), processor=self.processor)

    @property
    def _was_engines_own(self) -> bool:
        """Whether the run's sums were the engine's own all-reduces."""
        return is_engines_own(collectives.build(self.config.collective.name))

    def _processor(self) -> Processor:
        """What messages cost the cores of an emulated cluster, which all of its ranks share; nothing on hosts' own."""
        rank = self.evidence.ranks[0]
        cores, crowd = rank.get("cores"), self.evidence.crowd(0)
        if not cores or self._on_gpu:
            return Processor()
        # All ranks share so many, as if all machines were one.
        shared = self.workers * cores / crowd
        emulated = crowd > int(rank.get("ranks_on_host", 1))
        return replace(ranges.machine().processor, cores=shared) if emulated else Processor(cores=shared)

    @property
    def _on_gpu(self) -> bool:
        return bool(self.evidence.record["device"] == "cuda")


def _in_proportion(each: float, numel: int) -> float:
    return each * numel


def _trace(evidence: Evidence) -> Trace:
    """The run's model, computing as long as its slowest rank; without layers.json, each bucket is a layer.

    A scheduler that closes messages by their size then closes the same ones.
    """
    phases = [each["phases"] for each in evidence.ranks]
    forward, backward = (max(each[name] for each in phases) for name in ("forward", "backward"))
    if evidence.job is not None:
        # Backward passes that only accumulate are over before the exchange begins, and hide none of it.
        before = backward * evidence.job.quiet / evidence.job.passes
        forward, backward = forward + before, backward - before
    found = evidence.layers
    if found is None:
        # Their gradients come at even distances.
        buckets = list(reversed(list(enumerate(evidence.drawn.buckets))))
        count = len(buckets)
        layers = tuple(TraceLayer(f"bucket {number}", numel, 1 / count, 1 / count) for number, numel in buckets)
        found = Trace("buckets", "", "", 1, False, "the buckets that were drawn", "", layers)
    # A layer takes the same share of a pass as in the trace.
    return _stretched(found, forward / (found.forward_seconds or 1.0), backward / (found.backward_seconds or 1.0))


def _stretched(trace: Trace, ahead: float, back: float) -> Trace:
    """The trace with its forward pass `ahead` times as long, and its backward pass `back` times."""
    layers = (
        replace(each, forward_seconds=ahead * each.forward_seconds, backward_seconds=back * each.backward_seconds)
        for each in trace.layers
    )
    return replace(trace, layers=tuple(layers))


def _memory(evidence: Evidence) -> tuple[Rates, float]:
    """How long compressors work, and the memory they work in: a GPU's by its data sheet, else this machine's."""
    record: dict[str, Any] = evidence.record
    if record["device"] != "cuda":
        return Rates.shipped(on_gpu=False), this_machine.copy_bytes_per_second()
    name = str(record["environment"].get("device"))
    gpu = of_hardware(name)
    if gpu is None:
        raise UserError(f"{name}: how fast its memory is, is not known")
    return Rates.shipped(on_gpu=True), gpu.memory_gbs * 1e9
