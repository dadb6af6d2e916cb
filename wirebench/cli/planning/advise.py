"""Does compression pay on your network? Ranks compositions by simulation, before anything is rented.

  wirebench advise --model resnet50 --batch 32 --gpu v100 --network 10gbe --workers 32
  wirebench advise --trace googlenet_k80 --network 1gbe --workers 8
  wirebench advise --trace results/runs/mine/layers.json --topology fitted.toml --workers 4
  wirebench advise --model resnet_cifar --image-size 32 --classes 10 --batch 32 --probe --workers 4
  wirebench advise --model resnet50 --batch 128 --gpu h100 --precision bf16 --workers 32 --compressors mine.cyclic topk
  wirebench advise --trace vgg16_v100 --workers 8 --schedulers outer outer:every=500:delay=5 --compressors chunk_topk
  wirebench advise --trace resnet50_v100 --workers 32 --per-machine 8 --shard 8 --network 1gbe
  wirebench advise --trace resnet50_v100 --workers 16 --wire bf16 int8 mxfp8 --compressors quantised_sum

Three lines answer. The first is free: dense gradients, in 16 bits or better merged. The second is nearly free: its
worst seed lost at most --tolerance. The third is the fastest at a cost; for a language model, the one of the lowest
loss at equal time.

A table follows, in three groups:
  - free or nearly free, by speed
  - at a cost, by speed; for a language model, by loss at equal time
  - not recommended: lost too much, diverged, or was never trained so

Computing time comes from a trace, from an estimate for a GPU in fp32 (or --precision; --speed 2 doubles it), or from
this machine (--probe). On a GPU, compressors take the seconds that were measured on an H200. Elsewhere they take as
many copies of the gradient as measured on a CPU, at the memory's bandwidth, which is an estimate too.

With --wire a second table has dense gradients in these formats (collective.wire) on each way to sum. It shows bytes of
a rank, the expected error of the sum, and the time with the coding at each hop. Coding takes what `wirebench bench
compressors --formats` measured; without it there are no times. A code that loses nothing is the bar (docs/sums.md).

With --shard 8, FSDP shards the model over pods of 8 workers, and exchanges are between pods (docs/fsdp.md).

Name your own plugins by their dotted paths, as in train.py. A named compressor whose speed was not measured is first
timed here. A compressor pays below the rate between machines at which it beats the best dense composition by 1 % or
more. See docs/simulation.md.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from wirebench.planner import known
from wirebench.planner.accuracy import TOLERANCE
from wirebench.planner.compositions import check_positive
from wirebench.planner.given import PROBE_SECONDS, check_tolerance, chosen, given_by, ranking_of, write
from wirebench.planner.networks import add_network
from wirebench.planner.pods import add_shard, refuse_schedules
from wirebench.planner.progress import RankingProgress
from wirebench.planner.rank import SCHEDULERS
from wirebench.planner.schedules import built
from wirebench.planner.sums import check_forms
from wirebench.planner.timing import check_device, rates_over, time_unknown
from wirebench.simulation.compress_rates import Rates
from wirebench.simulation.roofline import GPUS, PRECISIONS
from wirebench.traces.inputs import add_inputs
from wirebench.utils.cli import check_outputs, parser_of


def main(arguments: Sequence[str]) -> int:
    """Rank what the command line names."""
    options = _parser().parse_args(arguments)
    # Mistakes first, and then a look at the machine that may take half a minute.
    names, given = chosen(options.compressors, options.density), Rates(options.rates) if options.rates else None
    schedules = built(options.schedulers or ())
    if options.shard is not None:
        refuse_schedules(schedules)
    check_outputs(options.figure, json=options.json)
    check_positive("--speed", [options.speed])
    check_tolerance(options.tolerance)
    check_forms(options.wire or ())
    check_positive("--gbit", [] if options.gbit is None else [options.gbit])
    check_device(given, on_gpu=not options.probe)  # before the probe; of a trace it is known after
    setting = given_by(options)
    rates = rates_over(given, on_gpu=setting.on_gpu)
    measured = known.load(setting.trace.unit == "images", setting.trace.numel)
    timed = time_unknown(names if options.compressors else (), rates, options.density, setting.trace.numel)
    with RankingProgress() as progress:
        ranking = ranking_of(options, setting, names, rates, measured, progress, timed)
    write(options, setting, ranking)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("advise", __doc__)
    add = parser.add_argument
    add("--trace", metavar="NAME", help="a trace in configs/traces, or a path to one")
    add("--model", metavar="NAME", help="instead: a model of models/, with --batch, and --gpu or --probe")
    add(
        "--batch", type=int, metavar="N", help="images, or what else the model takes, per worker and step (the trace's)"
    )
    add_inputs(parser)
    add(
        "--gpu",
        metavar="NAME",
        help=f"{', '.join(GPUS)}; with --trace: the GPU that compresses (the trace's; else this machine)",
    )
    add("--precision", choices=PRECISIONS, help="what the GPU computes in (fp32)")
    add("--probe", action="store_true", help="measure the model on this machine")
    add("--probe-seconds", type=float, metavar="S", help=f"how long --probe measures ({PROBE_SECONDS:g})")
    add("--speed", type=float, default=1.0, metavar="X", help="simulate hardware that is X times as fast (%(default)s)")
    add_network(parser)
    add_shard(parser)
    add("--gbit", type=float, metavar="RATE", help="rate between machines, in place of the network's")
    add("--workers", type=int, required=True, metavar="N")
    add(
        "--compressors",
        nargs="+",
        metavar="NAME[:KEY=VALUE...]",
        help="(all, and formats of sums that were trained); one of your own by its dotted path",
    )
    add(
        "--schedulers",
        nargs="+",
        metavar="NAME[:KEY=VALUE...]",
        help=f"({' '.join(SCHEDULERS)}, and local steps that were trained)",
    )
    add("--density", type=float, help="density of all compressors that have one (what each was trained with)")
    add(
        "--wire", nargs="+", metavar="FORM", help="also dense gradients in wire formats: bytes, error of the sum, times"
    )
    add("--rates", type=Path, metavar="FILE", help="what wirebench bench compressors measured, in place of ours")
    add(
        "--tolerance", type=float, default=TOLERANCE, metavar="X",
        help="points of accuracy, or percent of loss, that the worst seed may lose (%(default)s)",
    )  # fmt: skip
    add("--wide", action="store_true", help="rates, bytes, milliseconds, and where all numbers come from")
    add("--all", action="store_true", help="every composition, not each compressor's best")
    add("--json", type=Path, metavar="FILE", help="write the numbers")
    add("--figure", type=Path, metavar="FILE", help="draw them (.png)")
    return parser
