#!/usr/bin/env python3
"""Does compression pay on your network? Ranks compositions by simulation, before anything is rented.

python scripts/advise.py --model resnet50 --batch 32 --gpu v100 --network 10gbe --workers 32
python scripts/advise.py --trace googlenet_k80 --network 1gbe --workers 8
python scripts/advise.py --trace results/runs/mine/layers.json --topology fitted.toml --workers 4
python scripts/advise.py --model resnet_cifar --image-size 32 --classes 10 --batch 32 --probe --workers 4

Computation comes from a trace, from an estimate for a GPU, or from this machine (--probe). Compressors take as many
copies of the gradient as they were measured to take on a CPU, at the GPU's memory bandwidth: an estimate too.
Break-even is the rate between machines below which a compressor beats the best dense composition by 1 % or more; dense
stands before those that do not. See docs/simulation.md.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import compressors
from scripts import _accuracies
from scripts._accuracies import Accuracies
from scripts._advice import Advice, Adviser, place, rate, sentence
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
WORDS = {"computing": "compute", "compressing": "compress", "messages": "messages"}
"""What a step waits for, as short as the table needs it."""


class Ranking(NamedTuple):
    """What was found.

    shown, best  rows of the table; each compressor's best composition
    breaks       by compressor, where a rate between machines was looked for: Gbit/s below which it pays
    left_out     by compressor, why nothing is said of it
    """

    shown: Sequence[Advice]
    best: Sequence[Advice]
    breaks: dict[str, float | None]
    left_out: dict[str, str]
    accuracies: Accuracies
    answer: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, or 2 with one line on standard error."""
    try:
        options = _parser().parse_args(arguments)
        # Mistakes first, and then a look at the machine that may take half a minute.
        names, rates = _chosen(options.compressors, options.density), Rates(options.rates)
        check_outputs(options.figure, json=options.json)
        if options.workers == 1:
            raise UserError("--workers: one exchanges nothing, so that there is nothing to compress; needs 2 or more")
        accuracies = _accuracies.load()
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
        best.sort(key=place)
        lossy = [each.compressor for each in best if each.compressor != DENSE]
        breaks = {name: adviser.break_even(name) for name in lossy} if between else {}
        on_noise = [name for name in lossy if adviser.on_noise(name)]
        answer = sentence(best, breaks, accuracies, on_noise)
        ranking = Ranking(found if options.all else best, best, breaks, left_out, accuracies, answer)
        _write(options, model, bytes_per_second, ranking)
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


def _write(options: argparse.Namespace, model: Trace, bytes_per_second: float, ranking: Ranking) -> None:
    topology = topology_of(options, options.workers)
    each = max(map(len, topology.machines))
    inside = len(topology.machines) == 1 and not options.topology
    where = f"one machine, {LOCAL_SOURCE}" if inside else source_of(options)
    workers = f"{options.workers} workers x {model.batch_size} images"
    # Files first: whoever reads the table may stop after its first line.
    if options.json:
        content = {
            "trace": {"name": model.name, "estimate": model.estimate, "source": model.source},
            "network": where,
            "workers": options.workers,
            "workers_per_machine": each,
            "memory_bytes_per_second": bytes_per_second,
            "density": options.density,
            "answer": ranking.answer,
            "accuracy": ranking.accuracies.setting,
            "rows": [_entry(row, ranking) for row in ranking.shown],
            "left_out": ranking.left_out,
        }
        write_atomically(options.json, json.dumps(content, indent=1) + "\n")
    if options.figure:
        save(figure(ranking.best, f"{model.name}, {workers}, {gbit_of(topology):.4g} Gbit/s"), options.figure)
    kind = "estimated" if model.estimate else "measured"
    alone = f"a step alone takes {1e3 * (model.forward_seconds + model.backward_seconds):.1f} ms"
    head = [
        f"{model.name} ({kind}, {model.hardware}), {workers}: {alone}",
        f"{gbit_of(topology):.4g} Gbit/s ({where}); workers of a machine: {each}",
        f"Compressors work in memory of {bytes_per_second / 1e9:.4g} GB/s.",
        "Milliseconds of a step: compressing, all its messages, and what of both is exposed. Pays below: Gbit/s.",
        f"top-1: points beside dense, measured: {ranking.accuracies.setting or 'nothing in results/convergence'}.",
    ]
    left = [f"left out: {name}: {reason}" for name, reason in ranking.left_out.items()]
    written = [f"{path}: written" for path in (options.json, options.figure) if path]
    _print(head, table(ranking), [*left, *written, "", ranking.answer])


def _print(head: Sequence[str], rows: Table, tail: Sequence[str]) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for line in head:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(rows)
    for line in tail:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _entry(each: Advice, ranking: Ranking) -> dict[str, Any]:
    below, accuracies = ranking.breaks.get(each.compressor), ranking.accuracies
    return {
        "compressor": each.compressor, "scheduler": each.scheduler, "collective": each.collective,
        "images_per_second": each.images_per_second, "step_seconds": each.found.step.seconds,
        "efficiency": each.found.efficiency,
        "bytes_per_step": {"payload": each.found.num_bytes, "wire": each.found.wire_bytes},
        "exposed_seconds": each.found.step.exposed, "compress_seconds": each.found.compress,
        "communicate_seconds": each.found.communicate, "messages": len(each.found.groups),
        "break_even": None if below is None else rate(below),
        "break_even_gbit": None if below is None or math.isinf(below) else below,
        "top1_points": accuracies.cell(each.compressor) or None, "limit": each.limit,
    }  # fmt: skip


def table(ranking: Ranking) -> Table:
    """The ranking. Milliseconds of all messages of a step together, of compressing, and of both what is not hidden."""
    made = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    made.add_column("", justify="right", no_wrap=True)
    for head in ("compressor", "scheduler", "collective"):
        made.add_column(head, no_wrap=True)
    for head in ("img/s", "eff. %", "wire MB", "compress", "messages", "exposed", "pays below", "top-1"):
        made.add_column(head, justify="right", no_wrap=True)
    made.add_column("limit", no_wrap=True)
    seen: set[str] = set()
    for number, each in enumerate(ranking.shown, 1):
        # A break-even is that of the compressor's best composition, the first of it here.
        known = ranking.breaks if each.compressor not in seen else {}
        seen.add(each.compressor)
        found, below = each.found, known.get(each.compressor)
        made.add_row(
            str(number), each.compressor, each.scheduler, each.collective, f"{each.images_per_second:.0f}",
            f"{100 * found.efficiency:.1f}", f"{found.wire_bytes / 1e6:.4g}", f"{1e3 * found.compress:.1f}",
            f"{1e3 * found.communicate:.1f}", f"{1e3 * found.step.exposed:.1f}",
            _gbit(below) if each.compressor in known else "", ranking.accuracies.cell(each.compressor),
            WORDS[each.limit],
        )  # fmt: skip
    return made


def _gbit(below: float | None) -> str:
    return "nowhere" if below is None else "always" if math.isinf(below) else f"{below:.3g}"


def figure(best: Sequence[Advice], title: str) -> Any:
    """A bar for every compressor's best composition: what computes, and what the exchange adds."""
    drawn, axes = new_figure("", "milliseconds per step", "")
    drawn.suptitle(title, fontsize=9)
    drawn.set_size_inches(7.5, 0.28 * len(best) + 1.2)
    for row, each in enumerate(reversed(best)):
        alone, exposed = 1e3 * each.found.alone, 1e3 * each.found.step.exposed
        axes.barh(row, alone, color="0.75", label=None if row else "computing")
        axes.barh(row, exposed, left=alone, color="#1f78b4", label=None if row else "exchange, exposed")
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
