"""`wirebench simulate` step by step: schedules side by side at every point of a sweep; table and figure."""

import argparse
import dataclasses
import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table

from wirebench import collectives, compressors
from wirebench.collectives.plan import Collective
from wirebench.collectives.wire import wire_of
from wirebench.compressors.bits.coded import code_of
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.request_sizes import Sizes
from wirebench.errors import UserError
from wirebench.exchange.driver import refuse_wire
from wirebench.exchange.scheduler import Scheduler
from wirebench.figures.files import save
from wirebench.figures.provenance import computed
from wirebench.figures.style import Figure
from wirebench.formats import chakra
from wirebench.formats.chakra_step import step_trace
from wirebench.gradient.schedule import LayerCost
from wirebench.planner import ranges, sums
from wirebench.planner.compositions import (
    DENSE,
    MOST,
    build,
    check_batches,
    check_built,
    check_density,
    check_names,
    check_positive,
    check_time,
    clash,
    collective_of,
    compressing,
    lacks_shapes,
    needs_whole,
    sends_no_noise,
    sizes_of,
)
from wirebench.planner.networks import WIDTH, error_of, gbit_of, source_of, topology_of
from wirebench.planner.pods import Pods, misfit, pods_of, refuse_schedules
from wirebench.planner.ranges import Between
from wirebench.planner.schedules import built
from wirebench.planner.speedups import Point, figure
from wirebench.planner.timing import NOTHING, TimedExchange, time_unknown
from wirebench.simulation.compress_rates import WITHOUT_FORM, Rates
from wirebench.simulation.disturbance import Disturbance, quantiles
from wirebench.simulation.roofline import is_gpu
from wirebench.simulation.sharded import ShardedTrace
from wirebench.simulation.simulator import Simulated, Simulator, draw, free
from wirebench.simulation.trace import Trace
from wirebench.telemetry import environment
from wirebench.telemetry.timeline import Timeline
from wirebench.topology import pods
from wirebench.topology.tree import Topology
from wirebench.traces.estimate import gpu_of
from wirebench.utils.cli import check_outputs, naming
from wirebench.utils.console import console, say, with_room
from wirebench.utils.files import write_atomically
from wirebench.utils.parsing import plugin_of

WIRE = {"collective.wire": "--wire", "collective.wire_within": "--wire-within", "collective.name": "--collective"}
STEP = "step"
"""What the files of a step's Chakra traces are called: step.RANK.et."""
UNDISTURBED = "Stragglers and jitter are in p50 and p99 alone, not in the step, its range, exposed ms and efficiency."
UNTIMED = "Compressing and coding take no time here; --gpu counts them."
USUAL = ("wfbp", "single", "mg_wfbp", "optimal", "fused", "dear")


@dataclasses.dataclass(frozen=True)
class SimulatedRow:
    """One schedule at one point of the sweep.

    between    its step's range
    quantiles  the median and the 99th percentile of its steps, where something disturbs them
    sum_error  expected relative error of its sums in a wire format; None where none is asked for, or it is not known
    within_bytes  that FSDP has a worker send within its pod; None without pods
    """

    workers: int
    gbit: float | None
    batch: int
    speed: float
    scheduler: str
    found: Simulated
    layers: Sequence[LayerCost]
    between: Between
    quantiles: tuple[float, float] | None = None
    within_bytes: float | None = None
    sum_error: float | None = None

    def entry(self) -> dict[str, Any]:
        """The point as JSON values."""
        seconds, images = self.found.step.seconds, self.workers * self.batch
        return {
            "workers": self.workers, "gbit": self.gbit, "batch": self.batch, "speed": self.speed,
            "scheduler": self.scheduler, "step_seconds": seconds, "exposed_seconds": self.found.step.exposed,
            "efficiency": self.found.efficiency, "images_per_second": images / seconds,
            "step_seconds_range": list(self.between),
            "exposed_seconds_range": [each - self.found.alone for each in self.between],
            "efficiency_range": list(self.between.rates(self.found.alone)),
            "images_per_second_range": list(self.between.rates(images)),
            "step_seconds_p50": None if self.quantiles is None else self.quantiles[0],
            "step_seconds_p99": None if self.quantiles is None else self.quantiles[1],
            "messages": len(self.found.groups), "message_elements": self.found.elements, "sum_error": self.sum_error,
            "bytes_per_step": {"payload": self.found.num_bytes, "wire": self.found.wire_bytes}
            | ({} if self.within_bytes is None else {"within": self.within_bytes}),
        }  # fmt: skip


def check_options(options: argparse.Namespace, model: Trace) -> None:
    """Raise UserError for what does not exist, or cannot be swept."""
    check_positive("--speed", options.speed)
    check_positive("--gbit", options.gbit or ())
    check_names("--compressor", [options.compressor], compressors.PLUGINS)
    if options.shard is not None:
        refuse_schedules(built(options.schedulers or ()), options.compressor)
        if options.chakra or options.timeline:
            raise UserError("--shard: no drawing of a step has FSDP's messages; leave --timeline and --chakra out")
        for workers in options.workers:  # before any of them is simulated
            pods.replicas(topology_of(options, workers), options.shard)
    if options.gbit and not options.topology and max(options.workers) <= (options.per_machine or 1):
        raise UserError("--gbit: is the rate between machines, and there is one")
    if options.rates and not options.gpu:
        raise UserError("--rates: goes with --gpu; without it compressing and coding take no time")
    if not (math.isfinite(options.call_us) and options.call_us >= 0):
        raise UserError(f"--call-us: needs a number from 0 on, got {options.call_us:g}")
    check_batches(options.batch or ())
    swept = (options.workers, options.gbit, options.batch, options.speed)
    if options.figure and sum(len(set(each or ())) > 1 for each in swept) > 1:
        raise UserError(
            "--figure: draws along one of --workers, --gbit, --batch and --speed; give the others one value"
        )
    check_time(model)
    built(options.schedulers or ())
    check_names("--collective", [options.collective] if options.collective else (), collectives.PLUGINS)
    check_density([options.compressor], options.density)
    check_built("--compressor", options.compressor, options.density)
    if options.wire or options.wire_within:
        with naming(WIRE):
            refuse_wire(build(options.compressor, options.density), collective_with(options))
    check_outputs(options.figure, json=options.json, timeline=options.timeline)
    if options.chakra:
        chakra.check_folder(options.chakra, STEP, options.workers[-1])


def disturbance_of(options: argparse.Namespace) -> Disturbance:
    """What the options disturb steps with; UserError for what cannot be."""
    for name, low, high in (("compute_jitter", 0, 10), ("message_jitter", 0, 10), ("stragglers", 0, 1)):
        if not low <= getattr(options, name) <= high:
            raise UserError(f"--{name.replace('_', '-')}: needs {low} to {high}, got {getattr(options, name):g}")
    if not 1 <= options.slowdown <= MOST:
        raise UserError(f"--slowdown: needs 1 to {MOST:g}, got {options.slowdown:g}")
    if (options.stragglers > 0) != (options.slowdown > 1):
        raise UserError("--stragglers and --slowdown: go together, the share of slow workers and how slow they are")
    return Disturbance(options.compute_jitter, options.message_jitter, options.stragglers, options.slowdown)


def timed_for(options: argparse.Namespace, model: Trace, rates: Rates) -> TimedExchange:
    """What had to be measured of the compressor to simulate it on a GPU; `rates` has it then. UserError if it fails."""
    if not options.gpu:
        return NOTHING
    # Mistakes first: this may take half a minute.
    gpu_of(options.gpu)
    wire = wire_of(collective_with(options))
    for form in () if wire is None else (wire.between.name, wire.within.name):
        if not rates.codes(form):
            raise UserError(f"--wire: {WITHOUT_FORM.format(form)}")
    _schedulers(options)
    topology_of(options, options.workers[0])
    timed = time_unknown([options.compressor], rates, options.density, model.numel)
    for name, reason in timed.failed.items():
        raise UserError(f"--compressor: {name!r}: {reason}")
    return timed.beside([options.compressor], rates)


def sweep(options: argparse.Namespace, model: Trace, rates: Rates) -> list[SimulatedRow]:
    """All schedules at all points; UserError for what does not go together."""
    name, _ = plugin_of(options.compressor)
    own = {f"compressor.{key}": f"--compressor {name}: {key}" for key in compressors.PLUGINS.parameters(name)}
    with naming({"scheduler.name": "--schedulers", "compressor.name": "--compressor", **WIRE, **own}):
        return _rows(options, model, rates)


def _rows(options: argparse.Namespace, model: Trace, rates: Rates) -> list[SimulatedRow]:
    rows = []
    tried = _schedulers(options)
    sizes: dict[int, Sizes] = {}
    disturbance = disturbance_of(options)
    usual = (options.workers, options.gbit or [None], options.batch or [model.batch_size], options.speed)
    for workers, gbit, batch, speed in itertools.product(*(dict.fromkeys(each) for each in usual)):
        whole = topology_of(options, workers, gbit)
        inside = _pods(options, model)
        topology = whole if inside is None else inside.replicas(whole)
        factors = ranges.load(network=error_of(options)).factors(rates.spread(options.compressor))
        if workers not in sizes:
            sizes[workers] = sizes_of(options.compressor, options.density, model, topology.size)
            if reason := lacks_shapes(sizes[workers], model) or sends_no_noise(sizes[workers], model):
                raise UserError(f"--compressor: {options.compressor!r}: {reason}")
        computed = model.batched(batch).faster(speed)
        if inside is not None:
            computed = inside.trace(computed, whole)
        simulator = _simulator(options, computed, sizes[workers], topology, rates)
        coded = wire_of(collective_with(options))
        error = None if coded is None else sums.error_of(coded, topology, sums.load(model.unit))
        # Between the workers of one machine there is no such rate.
        between = len(whole.machines) > 1 or bool(options.topology)
        for name, scheduler in tried.items():
            simulated = simulator.step(scheduler)
            if len(simulated.groups) > 1 and needs_whole(options.compressor, options.density):
                raise UserError(f"--schedulers: {name!r} cuts the model, and {options.compressor!r} needs it whole")
            carried = gbit_of(whole) if between else None
            layers = simulator.costs()
            seconds = Between(*(simulator.stretched(simulated, scheduler, each).seconds for each in factors))
            drawn = quantiles(simulator, simulated, scheduler, disturbance) if disturbance != Disturbance() else None
            within = computed.within_bytes if isinstance(computed, ShardedTrace) else None
            rows.append(
                SimulatedRow(workers, carried, batch, speed, name, simulated, layers, seconds, drawn, within, error)
            )
    return rows


def _pods(options: argparse.Namespace, model: Trace) -> Pods | None:
    return pods_of(options, options.gpu is not None or is_gpu(model.hardware))


def _schedulers(options: argparse.Namespace) -> dict[str, Scheduler]:
    """The named schedulers; else the usual ones that go with the compressor and the collective."""
    collective = options.collective or collective_of(options.compressor)
    if options.schedulers:
        named = built(options.schedulers)
        for name, scheduler in named.items():
            if reason := clash(scheduler, options.compressor, collective, options.density):
                raise UserError(f"--schedulers: {name!r} {reason}")
        return named
    if needs_whole(options.compressor, options.density):
        return built(["single"])
    usual = built(USUAL)
    if options.shard is not None:
        usual = {name: each for name, each in usual.items() if not misfit(each, options.compressor)}
    parts = options.compressor, collective, options.density
    return {name: each for name, each in usual.items() if not clash(each, *parts)}


def _simulator(options: argparse.Namespace, model: Trace, sizes: Sizes, topology: Topology, rates: Rates) -> Simulator:
    memory = gpu_of(options.gpu).memory_gbs * 1e9 if options.gpu else math.inf
    coding = rates.coding(memory) if options.gpu and options.wire else None
    pricer = Pricer(collective_with(options), topology, options.call_us * 1e-6, options.formulas, coding)
    if not options.gpu:
        return Simulator(model, sizes, free, pricer)
    method = rates, options.compressor, sizes, model, memory
    seconds, decoded = compressing(*method, topology.processor)
    return Simulator(model, sizes, seconds, pricer, decoded)


def collective_with(options: argparse.Namespace) -> Collective:
    """The collective with its wire formats; UserError for a format that there is not."""
    name = options.collective or collective_of(options.compressor)
    between, within = code_of(options.wire, "--wire"), code_of(options.wire_within, "--wire-within")
    return collectives.formatted(collectives.build(name), between, within)


def write(options: argparse.Namespace, model: Trace, rows: Sequence[SimulatedRow], timed: TimedExchange) -> None:
    """Write the files that were asked for, and print the table."""
    inside = _pods(options, model)
    # Files first: whoever reads the table may stop after its first line.
    if options.json:
        given = (
            "trace", "compressor", "density", "per_machine", "call_us", "formulas", "gpu", "shard",
            "wire", "wire_within",
        )  # fmt: skip
        content = {key: getattr(options, key) for key in given} | {
            "collective": options.collective or collective_of(options.compressor),
            "network": source_of(options),
            "backend": None if inside is None else inside.backend.name.lower(),
            "unit": model.unit,
            "timed_here": timed.entry(),
            "rows": [row.entry() for row in rows],
        }
        write_atomically(options.json, json.dumps(content, indent=1) + "\n")
    if options.figure:
        save(_figure(options, model, rows), options.figure)
    if options.timeline:
        timeline = Timeline()
        draw(rows[-1].found, timeline)
        timeline.save(options.timeline)
    if options.chakra:
        write_chakra(options, rows[-1])
    schedules = table(rows)
    shown = with_room(console(WIDTH), schedules)
    collective = options.collective or collective_of(options.compressor)
    coded = wire_of(collective_with(options))
    named = collective if coded is None else f"{collective} in {coded.name}"
    said = f"{model.name} ({model.made}), {options.compressor} on {named}; {source_of(options)}"
    undisturbed = [UNDISTURBED] if any(row.quantiles for row in rows) else []
    within = [] if inside is None else [f"Within a pod {inside.volume}."]
    untimed = [UNTIMED] * (not options.gpu and (options.compressor != DENSE or coded is not None))
    say(shown, (said, *timed.said, *within, *untimed, *undisturbed))
    shown.print(schedules)
    files = filter(None, (options.json, options.figure, options.timeline, options.chakra))
    say(shown, (f"{path}: written" for path in files))


def _figure(options: argparse.Namespace, model: Trace, rows: Sequence[SimulatedRow]) -> Figure:
    points = []
    for row in rows:
        efficiency = row.found.efficiency, row.between.rates(row.found.alone)
        points.append(Point(row.workers, row.gbit, row.batch, row.speed, row.scheduler, *efficiency))
    alike = [model.name, "dense" if options.compressor == DENSE else options.compressor, *_alike(rows)]
    sources = f"the trace {model.name} ({model.made})", f"the network {source_of(options)}"
    bars = f"Bars: ranges, by {ranges.load().runs} measured runs."
    return figure(points, ", ".join(alike), model.unit, f"{bars} {computed(environment.git(), *sources)}.")


def write_chakra(options: argparse.Namespace, row: SimulatedRow) -> None:
    """The row's step as Chakra traces, FOLDER/step.RANK.et."""
    collective = options.collective or collective_of(options.compressor)
    trace = step_trace(row.found, row.layers, row.workers, collective)
    about = {"model": options.trace, "scheduler": row.scheduler, "compressor": options.compressor}
    about |= {"collective": collective, "network": source_of(options)}
    chakra.save(options.chakra, STEP, [trace] * row.workers, about)


def _alike(rows: Sequence[SimulatedRow]) -> list[str]:
    """What all rows have in common of the network, in words."""
    workers, rates = {row.workers for row in rows}, {row.gbit for row in rows}
    shared = [f"{workers.pop()} workers"] if len(workers) == 1 else []
    return shared + [f"{rate:.4g} Gbit/s" for rate in rates if rate is not None and len(rates) == 1]


def table(rows: Sequence[SimulatedRow]) -> Table:
    """A line for every schedule at every point."""
    shown = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
    drawn = ("p50", "p99") if any(row.quantiles for row in rows) else ()
    within = ("within MB",) if any(row.within_bytes is not None for row in rows) else ()
    off = ("sum's error",) if any(row.sum_error is not None for row in rows) else ()
    for head in ("workers", "Gbit/s", "batch", "speed", "scheduler", "step ms", "range", *drawn, "exposed ms",
                 "efficiency", "messages", *within, "wire MB", *off):  # fmt: skip
        shown.add_column(head, justify="left" if head == "scheduler" else "right")
    for row in rows:
        step = row.found.step
        shown.add_row(
            str(row.workers),
            "-" if row.gbit is None else f"{row.gbit:.4g}",
            str(row.batch),
            f"{row.speed:g}",
            row.scheduler,
            f"{1e3 * step.seconds:.2f}",
            f"{1e3 * row.between.low:.4g}-{1e3 * row.between.high:.4g}",
            *([] if row.quantiles is None else [f"{1e3 * seconds:.2f}" for seconds in row.quantiles]),
            f"{1e3 * step.exposed:.2f}",
            f"{100 * row.found.efficiency:.1f} %",
            str(len(row.found.groups)),
            *([] if row.within_bytes is None else [f"{row.within_bytes / 1e6:.4g}"]),
            f"{row.found.wire_bytes / 1e6:.4g}",
            *(["-" if row.sum_error is None else f"{100 * row.sum_error:.3g} %"] * len(off)),
        )
    return shown
