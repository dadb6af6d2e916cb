"""`wirebench advise` step by step: what is simulated, where; the ranking; what is written."""

import argparse
import functools
import json
from collections.abc import Sequence
from typing import Any

from wirebench import compressors, models
from wirebench.errors import UserError
from wirebench.planner import ranges, sums
from wirebench.planner.accuracy import Accuracies, is_exact
from wirebench.planner.answer import Judge, best_of, dense_of
from wirebench.planner.compositions import (
    DENSE,
    MOST,
    check_batches,
    check_built,
    check_density,
    check_names,
    check_positive,
    check_time,
)
from wirebench.planner.networks import error_of, gbit_of, source_of, topology_of
from wirebench.planner.pods import pods_of
from wirebench.planner.probe import probe
from wirebench.planner.progress import RankingProgress
from wirebench.planner.rank import Adviser
from wirebench.planner.render import Ranking, ShownSetting, content, key_of, show
from wirebench.planner.timing import NOTHING, TimedExchange
from wirebench.record.compare import busy_machines
from wirebench.simulation import trace
from wirebench.simulation.compress_rates import Rates
from wirebench.simulation.roofline import GPUS, Gpu, is_gpu, of_hardware
from wirebench.simulation.trace import Trace
from wirebench.telemetry.machines import LoadMeter
from wirebench.topology import presets
from wirebench.topology.pods import replicas
from wirebench.topology.tree import Link, Topology
from wirebench.traces import inputs
from wirebench.traces.estimate import estimate, gpu_of, model_options, name_of, shipped
from wirebench.utils import this_machine
from wirebench.utils.files import write_atomically

PROBE_SECONDS = 30.0
SHORTEST = 0.1
"""Seconds for which the load of the machine is believed."""
OF_A_MODEL = ("probe", "option", "data", "image_size", "classes", "precision", "probe_seconds")
"""Options that say nothing beside a trace."""


def given_by(options: argparse.Namespace) -> ShownSetting:
    """What is simulated, where; UserError for what does not go together."""
    if options.workers == 1:
        raise UserError("--workers: one exchanges nothing, so that there is nothing to compress; needs 2 or more")
    topology = topology_of(options, options.workers, options.gbit)
    alone = len(topology.machines) == 1 and not options.topology
    if alone and options.gbit is not None:
        raise UserError("--gbit: is the rate between machines, and there is one")
    if options.shard is not None:
        replicas(topology, options.shard)  # a misfit is told before anything is measured
    model, gpu = _computation(options)
    inside, link = _inside(options, gpu, model.hardware)
    topology = topology_of(options, options.workers, options.gbit, link)
    pods = pods_of(options, gpu is not None)
    network = f"one machine: all workers in it, on {inside}" if alone else source_of(options)
    if options.gbit is not None:
        network = f"--gbit in place of the rate of {network}"
    memory, bytes_per_second, busy = _memory(gpu)
    check_time(model)
    return ShownSetting(
        model.faster(options.speed),
        options.speed,
        options.workers,
        max(map(len, topology.machines)),
        inside,
        link,
        network,
        gbit_of(topology),
        memory,
        bytes_per_second,
        busy,
        options.density,
        gpu is not None,
        "" if pods is None else pods.words(model, topology),
        {} if pods is None else pods.entry(model, topology),
    )


def _inside(options: argparse.Namespace, gpu: Gpu | None, hardware: str) -> tuple[str, Link]:
    """What links the workers of a machine, in words: NVLink where the GPU has it; "" where nothing is assumed."""
    if options.topology or (options.per_machine or 1) == 1:
        return "", presets.LOCAL
    # A trace may be of a card of the same name that has none.
    if gpu is None or gpu.nvlink_gbs is None or "PCI" in hardware.upper():
        return "PCIe 3 x16 at its nominal rate, 12 GB/s", presets.LOCAL
    return f"NVLink at its nominal rate, {gpu.nvlink_gbs:g} GB/s (assumed)", presets.nvlink(gpu.nvlink_gbs)


def ranking_of(
    options: argparse.Namespace,
    setting: ShownSetting,
    names: list[str],
    rates: Rates,
    accuracies: Accuracies,
    progress: RankingProgress,
    timed: TimedExchange = NOTHING,
) -> Ranking:
    """All compositions, ranked. timed: what the rates have of this machine."""

    def topology(gbit: float | None) -> Topology:
        return topology_of(options, options.workers, options.gbit if gbit is None else gbit, setting.link)

    # What a compressor was trained with is ranked, where nothing else is asked for.
    trained = [] if options.compressors else [name for name in accuracies.known if ":" in name]
    densities = {name: each.density for name, each in accuracies.known.items() if each.density is not None}
    local = {name: [each.schedule for each in those] for name, those in accuracies.local.items()}
    adviser = Adviser(
        setting.trace, topology, rates, setting.bytes_per_second, ranges.load(network=error_of(options)),
        options.density, options.schedulers or (), densities, local,
        lambda done, every: progress.tell(f"simulating: {done} of {every} compressors"),
        pods_of(options, setting.on_gpu),
    )  # fmt: skip
    used_by = functools.cache(adviser.density_of)
    found, left_out = adviser.all([*names, *trained], named=bool(options.compressors))
    on_noise = [name for name in dict.fromkeys(each.compressor for each in found) if adviser.on_noise(name)]
    plain = adviser.plain()
    judge = Judge(accuracies, plain, dense_of(found, plain), used_by, on_noise, options.tolerance)
    found, best = sorted(found, key=judge.key), best_of(found, judge)
    lossy = [key_of(each) for each in best if not is_exact(each)]
    between = lossy if len(topology(None).machines) > 1 else []
    breaks, ends = {}, {}
    for done, key in enumerate(between):
        progress.tell(f"looking for break-evens: {done} of {len(between)} compositions")
        name, scheduler, collective = key
        breaks[key] = adviser.break_even(name, (scheduler, collective))
        ends[key] = adviser.break_even_between(name, (scheduler, collective))
    used = {name: used_by(name) for name in dict.fromkeys([DENSE, *(each.compressor for each in found)])}
    progress.tell("simulating: sums by wire format")
    summed = sums.rows_of(adviser, options.wire, sums.load(setting.trace.unit), judge) if options.wire else []
    return Ranking(
        found, best, judge.lines(found), judge, breaks, ends, left_out | timed.failed, used, adviser.errors,
        setting.trace.numel, timed.beside(used, rates), summed,
    )  # fmt: skip


def _computation(options: argparse.Namespace) -> tuple[Trace, Gpu | None]:
    """The trace, and what compresses: a GPU, or None for this machine."""
    gpu = _named(options.gpu) if options.gpu else None
    if sum(map(bool, (options.trace, options.model))) != 1:
        raise UserError("--trace or --model: name one of them")
    if options.trace:
        given = [name for name in OF_A_MODEL if getattr(options, name) not in (None, False, [])]
        if given:
            raise UserError(f"--{given[0].replace('_', '-')}: goes with --model, not with --trace")
        model = trace.load(trace.find(options.trace, "--trace"))
        check_batches([] if options.batch is None else [options.batch])
        return model.batched(_or(options.batch, model.batch_size)), gpu or _gpu_of(model)
    return _of_model(options, gpu), gpu


def _of_model(options: argparse.Namespace, gpu: Gpu | None) -> Trace:
    """A trace of --model: an estimate for the GPU, else measured here."""
    check_positive("--probe-seconds", [_or(options.probe_seconds, PROBE_SECONDS)])
    if options.probe and gpu:
        raise UserError("--gpu: estimates a GPU, and --probe measures this machine; name one of them")
    if not options.probe and not gpu:
        raise UserError("--model: needs --gpu for an estimate, or --probe to measure this machine")
    if gpu and options.probe_seconds is not None:
        raise UserError("--probe-seconds: goes with --probe")
    if options.probe and options.precision:
        raise UserError("--precision: goes with --gpu; --probe measures in fp32")
    if options.batch is None:
        raise UserError(f"--batch: is missing, the {'samples' if options.data else 'images'} of a worker's step")
    own = model_options(options.option)
    with inputs.naming_options(options.model, own, options.data):
        # Before the data are read, which takes seconds.
        models.PLUGINS.check(options.model, own, in_config=False)
        given = inputs.chosen(options.data, options.batch, options.image_size, options.classes, own)
        if gpu is None:
            return probe(options.model, own, given, _or(options.probe_seconds, PROBE_SECONDS))
        precision = _or(options.precision, "fp32")
        asked = (options.model, own, gpu, given, name_of(options.model, options.gpu, precision), precision)
        return shipped(*asked) or estimate(*asked)


def _named(name: str) -> Gpu:
    """The GPU of this name; UserError says what there is, and what else would do."""
    try:
        return gpu_of(name)
    except UserError as error:
        raise UserError(f"{error}; for another one: --probe measures this machine, --trace takes times") from error


def _gpu_of(model: Trace) -> Gpu | None:
    """The trace's GPU, None for a CPU; UserError for a GPU whose memory is not known."""
    gpu = of_hardware(model.hardware)
    if gpu is None and is_gpu(model.hardware):
        raise UserError(f"--gpu: whose memory compresses? The trace's {model.hardware!r} is none of {', '.join(GPUS)}")
    return gpu


def _memory(gpu: Gpu | None) -> tuple[str, float, str]:
    """The memory that compresses: whose it is, its bytes per second, a GPU's by its data sheet; a warning, or ""."""
    if gpu is not None:
        return gpu.label, gpu.memory_gbs * 1e9, ""
    meter = LoadMeter()
    bytes_per_second, load = this_machine.copy_bytes_per_second(), meter.load()
    # Processor times are counted in hundredths of a second: of a shorter time they say little.
    busy = busy_machines({"load": load}) if load[0]["seconds"] >= SHORTEST else []
    warning = "".join(
        f"warning: other programs kept {each['others_cores']:.2g} of this machine's {each['cores']} cores busy while "
        "its memory was measured, so compressors may be faster than this says"
        for each in busy
    )
    return "this machine's, measured just now", bytes_per_second, warning


def _or(given: Any, usual: Any) -> Any:
    return usual if given is None else given


def check_tolerance(tolerance: float) -> None:
    """Raise UserError for what is no number from 0 on."""
    if not 0 <= tolerance <= MOST:
        raise UserError(f"--tolerance: needs a number from 0 on, got {tolerance:g}")


def chosen(names: Sequence[str] | None, density: float | None) -> list[str]:
    """The compressors to be ranked, dense first; UserError for a name or a density that does not exist."""
    check_names("--compressors", names or (), compressors.PLUGINS)
    for name in names or ():
        check_built("--compressors", name, density)
    named = [compressors.PLUGINS.words_of(name) for name in names or ()]
    wanted = list(dict.fromkeys([DENSE, *(named or compressors.PLUGINS.own())]))
    check_density(wanted, density)
    return wanted


def write(options: argparse.Namespace, setting: ShownSetting, ranking: Ranking) -> None:
    """Write the files that were asked for, and print the rest."""
    shown = ranking.found if options.all else ranking.best
    # Files first: whoever reads the table may stop after its first line.
    if options.json:
        write_atomically(options.json, json.dumps(content(setting, ranking, shown), indent=1) + "\n")
    if options.figure:
        # Imported where it is needed: what draws takes half a second to import.
        from wirebench.planner import bars

        bars.draw(setting, ranking, shown, options.figure)
    show(setting, ranking, shown, [path for path in (options.json, options.figure) if path], options.wide)
