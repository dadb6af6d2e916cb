#!/usr/bin/env python3
"""Does compression pay on your network? Ranks compositions by simulation, before anything is rented.

python scripts/advise.py --model resnet50 --batch 32 --gpu v100 --network 10gbe --workers 32
python scripts/advise.py --trace googlenet_k80 --network 1gbe --workers 8
python scripts/advise.py --trace results/runs/mine/layers.json --topology fitted.toml --workers 4
python scripts/advise.py --model resnet_cifar --image-size 32 --classes 10 --batch 32 --probe --workers 4

Computation comes from a trace, from an estimate for a GPU, or from this machine (--probe). Compressors take as many
copies of the gradient as they were measured to take on a CPU, at the GPU's memory bandwidth: an estimate too.
Break-even is the rate between machines below which a compressor beats the best dense composition by 1 % or more. See
docs/simulation.md.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import compressors
from scripts._advice import Advice, Adviser, rate, sentence
from scripts._networks import LOCAL_SOURCE, WIDTH, add_network, gbit_of, source_of, topology_of
from scripts._outputs import check_outputs
from scripts._probe import copy_bytes_per_second, probe
from scripts._simulators import DENSE, check_density, check_names, check_positive, check_time
from scripts.cluster import parser_of
from scripts.estimate_trace import check_sizes, estimate, gpu_of, model_options
from scripts.plot_collectives import new_figure, save
from wirebench import trace
from wirebench.compress_rates import SHIPPED, Rates
from wirebench.errors import UserError
from wirebench.files import write_atomically
from wirebench.roofline import GPUS, Gpu
from wirebench.trace import Trace

IMAGE_SIZE, CLASSES, PROBE_SECONDS = 224, 1000, 30.0
OF_A_MODEL = ("probe", "option", "batch", "image_size", "classes", "probe_seconds")
"""Options that say nothing beside a trace."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, or 2 with one line on standard error."""
    try:
        options = _parser().parse_args(arguments)
        # Mistakes first, and then a look at the machine that may take half a minute.
        names, rates = _chosen(options.compressors, options.density), Rates(options.rates)
        check_outputs(options.figure, json=options.json)
        between = len(topology_of(options, options.workers).machines) > 1
        model, bytes_per_second = _computation(options)
        check_time(model)
        adviser = Adviser(
            model,
            lambda gbit: topology_of(options, options.workers, gbit),
            rates,
            bytes_per_second,
            options.density,
        )
        found, left_out = adviser.all(names, named=bool(options.compressors))
        best = list({each.compressor: each for each in reversed(found)}.values())
        best.sort(key=lambda each: each.found.step.seconds)
        lossy = [each.compressor for each in best if each.compressor != DENSE]
        breaks = {name: adviser.break_even(name) for name in lossy} if between else {}
        _write(options, model, bytes_per_second, found if options.all else best, best, breaks, left_out)
    except UserError as error:
        print(f"advise.py: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"advise.py: {error.filename or 'standard output'}: cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _computation(options: argparse.Namespace) -> tuple[Trace, float]:
    """The trace, and the bytes per second of the memory that compresses."""
    gpu = gpu_of(options.gpu) if options.gpu else None
    if sum(map(bool, (options.trace, options.model))) != 1:
        raise UserError("--trace or --model: name one of them")
    if options.trace:
        given = [name for name in OF_A_MODEL if getattr(options, name) not in (None, False, [])]
        if given:
            raise UserError(f"--{given[0].replace('_', '-')}: goes with --model, not with --trace")
        model = trace.load(trace.find(options.trace))
        return model, _bytes_per_second(gpu or next((g for g in GPUS.values() if g.label == model.hardware), None))
    check_positive("--probe-seconds", [_or(options.probe_seconds, PROBE_SECONDS)])
    if options.probe and gpu:
        raise UserError("--gpu: estimates a GPU, and --probe measures this machine; name one of them")
    if not options.probe and not gpu:
        raise UserError("--model: needs --gpu for an estimate, or --probe to measure this machine")
    if gpu and options.probe_seconds is not None:
        raise UserError("--probe-seconds: goes with --probe")
    if options.batch is None:
        raise UserError("--batch: is missing, the images of a worker's step")
    sizes = options.batch, _or(options.image_size, IMAGE_SIZE), _or(options.classes, CLASSES)
    chosen = model_options(options.option)
    if gpu:
        model = estimate(options.model, chosen, gpu, *sizes, name=f"{options.model}_{options.gpu}")
    else:
        check_sizes(*sizes)
        model = probe(options.model, chosen, *sizes, seconds=_or(options.probe_seconds, PROBE_SECONDS))
    return model, _bytes_per_second(gpu)


def _or(given: Any, usual: Any) -> Any:
    return usual if given is None else given


def _bytes_per_second(gpu: Gpu | None) -> float:
    return gpu.memory_gbs * 1e9 if gpu else copy_bytes_per_second()


def _chosen(names: Sequence[str] | None, density: float | None) -> list[str]:
    known = compressors.available()
    check_names("--compressors", names or (), known)
    chosen = list(dict.fromkeys([DENSE, *(names or known)]))
    check_density(chosen, density)
    return chosen


def _write(
    options: argparse.Namespace,
    model: Trace,
    bytes_per_second: float,
    shown: Sequence[Advice],
    best: Sequence[Advice],
    breaks: dict[str, float | None],
    left_out: dict[str, str],
) -> None:
    answer, topology = sentence(best, breaks), topology_of(options, options.workers)
    each = max(map(len, topology.machines))
    inside = len(topology.machines) == 1 and not options.topology
    where = f"one machine, {LOCAL_SOURCE}" if inside else source_of(options)
    # Files first: whoever reads the table may stop after its first line.
    if options.json:
        content = {
            "trace": {"name": model.name, "estimate": model.estimate, "source": model.source},
            "network": where,
            "workers": options.workers,
            "workers_per_machine": each,
            "memory_bytes_per_second": bytes_per_second,
            "density": options.density,
            "answer": answer,
            "rows": [_entry(row, breaks) for row in shown],
            "left_out": left_out,
        }
        write_atomically(options.json, json.dumps(content, indent=1) + "\n")
    if options.figure:
        save(figure(best), options.figure)
    kind = "estimated" if model.estimate else "measured"
    alone = f"a step alone takes {1e3 * (model.forward_seconds + model.backward_seconds):.1f} ms"
    head = [
        f"{model.name} ({kind}, {model.hardware}), {options.workers} workers x {model.batch_size} images: {alone}",
        f"{gbit_of(topology):.4g} Gbit/s ({where}); workers of a machine: {each}",
        f"Compressors work in memory of {bytes_per_second / 1e9:.4g} GB/s.",
        "Milliseconds of a step: compressing, all its messages, and what of both is exposed.",
    ]
    left = [f"left out: {name}: {reason}" for name, reason in left_out.items()]
    _print(head, table(shown, breaks), [*left, "", answer])


def _print(head: Sequence[str], rows: Table, tail: Sequence[str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for line in head:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(rows)
    for line in tail:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _entry(each: Advice, breaks: dict[str, float | None]) -> dict[str, Any]:
    below = breaks.get(each.compressor)
    return {
        "compressor": each.compressor, "scheduler": each.scheduler, "collective": each.collective,
        "images_per_second": each.images_per_second, "step_seconds": each.found.step.seconds,
        "efficiency": each.found.efficiency,
        "bytes_per_step": {"payload": each.found.num_bytes, "wire": each.found.wire_bytes},
        "exposed_seconds": each.found.step.exposed, "compress_seconds": each.found.compress,
        "communicate_seconds": each.found.communicate, "messages": len(each.found.groups),
        "break_even": None if below is None else rate(below),
        "break_even_gbit": None if below is None or math.isinf(below) else below, "limit": each.limit,
    }  # fmt: skip


def table(shown: Sequence[Advice], breaks: dict[str, float | None]) -> Table:
    """The ranking. Milliseconds of all messages of a step together, of compressing, and of both what is not hidden."""
    made = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    made.add_column("", justify="right", no_wrap=True)
    for head in ("compressor", "scheduler", "collective"):
        made.add_column(head, no_wrap=True)
    for head in ("images/s", "eff.", "wire MB", "compress", "messages", "exposed", "pays below"):
        made.add_column(head, justify="right", no_wrap=True)
    made.add_column("limit", no_wrap=True)
    seen: set[str] = set()
    for place, each in enumerate(shown, 1):
        # A break-even is that of the compressor's best composition, the first of it here.
        known = breaks if each.compressor not in seen else {}
        seen.add(each.compressor)
        found, below = each.found, known.get(each.compressor)
        made.add_row(
            str(place), each.compressor, each.scheduler, each.collective, f"{each.images_per_second:.0f}",
            f"{100 * found.efficiency:.1f} %", f"{found.wire_bytes / 1e6:.4g}", f"{1e3 * found.compress:.1f}",
            f"{1e3 * found.communicate:.1f}", f"{1e3 * found.step.exposed:.1f}",
            "" if each.compressor not in known else ("nowhere" if below is None else rate(below)), each.limit,
        )  # fmt: skip
    return made


def figure(best: Sequence[Advice]) -> Any:
    """A bar for every compressor's best composition: what computes, and what the exchange adds."""
    drawn, axes = new_figure("", "milliseconds per step", "")
    drawn.set_size_inches(7.5, 0.28 * len(best) + 1.2)
    for place, each in enumerate(reversed(best)):
        alone, exposed = 1e3 * each.found.alone, 1e3 * each.found.step.exposed
        axes.barh(place, alone, color="0.75", label="computing" if not place else None)
        axes.barh(place, exposed, left=alone, color="#1f78b4", label="exchange, exposed" if not place else None)
    axes.set_yticks(range(len(best)), [f"{e.compressor}, {e.scheduler}" for e in reversed(best)], fontsize=8)
    for each, label in zip(reversed(best), axes.get_yticklabels(), strict=True):
        label.set_fontweight("bold" if each.compressor == DENSE else "normal")
    axes.legend(fontsize=8, frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    return drawn


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(str(__doc__))
    add = parser.add_argument
    add("--trace", metavar="NAME", help="a trace in configs/traces, or a path to one")
    add("--model", metavar="NAME", help="instead: a model of models/, with --batch, and --gpu or --probe")
    add("--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the model")
    add("--batch", type=int, metavar="N", help="images of a worker")
    add("--image-size", type=int, metavar="N", help=f"height and width in pixels ({IMAGE_SIZE})")
    add("--classes", type=int, metavar="N", help=f"that the model tells apart ({CLASSES})")
    add(
        "--gpu",
        metavar="NAME",
        help=f"{', '.join(GPUS)}; with --trace: whose memory compresses (the trace's, else this machine's)",
    )
    add("--probe", action="store_true", help="measure the model on this machine")
    add("--probe-seconds", type=float, metavar="S", help=f"for so long ({PROBE_SECONDS:g})")
    add_network(parser)
    add("--workers", type=int, required=True, metavar="N")
    add("--compressors", nargs="+", metavar="NAME", help="all")
    add("--density", type=float, help="of compressors that have one (each one's own)")
    add("--rates", type=Path, default=SHIPPED, metavar="FILE", help="cells of scripts/bench_compressors.py (ours)")
    add("--all", action="store_true", help="every composition, not each compressor's best")
    add("--json", type=Path, metavar="FILE", help="write the numbers")
    add("--figure", type=Path, metavar="FILE", help="draw them (.png)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
