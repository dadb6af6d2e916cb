"""Simulate training steps: compare schedules over numbers of workers, link rates, batches and GPU speeds.

  wirebench simulate --trace googlenet_k80 --network mgwfbp --formulas --workers 4 8 16 32 64 --figure fig.png
  wirebench simulate --trace resnet50_v100 --gbit 1 5 10 25 --workers 16 --schedulers wfbp fused optimal dear
  wirebench simulate --trace resnet50_v100 --compressor gtopk --density 0.001 --workers 32
  wirebench simulate --trace vgg16_v100 --workers 8 --schedulers outer:every=30 outer:every=500
  wirebench simulate --trace vgg16_v100 --workers 8 --schedulers dear --timeline step.json
  wirebench simulate --trace vgg16_v100 --workers 1024 --compute-jitter 0.03 --stragglers 0.001 --slowdown 2
  wirebench simulate --trace vgg16_v100 --workers 4 --schedulers wfbp --collective native --chakra step
  wirebench simulate --trace resnet50_v100 --workers 16 --per-machine 8 --shard 8 --compressor powersgd
  wirebench simulate --trace resnet50_v100 --workers 4 16 64 --collective one_hop --wire int8

Efficiency is the throughput of P workers over P times the throughput of one. Computing time is proportional to the
batch. docs/simulation.md describes the model. Name your own compressor or scheduler by its dotted path, as in
train.py. With --gpu, a compressor whose speed was not measured is first timed on this machine. With --wire the table
has the expected error of the sum (docs/sums.md). With --gpu, coding takes what `wirebench bench compressors --formats`
measured, as the shipped rates or --rates have it; without --gpu it is free, as compressing is.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from wirebench import compressors
from wirebench.planner.compositions import DENSE
from wirebench.planner.networks import add_network
from wirebench.planner.pods import add_shard
from wirebench.planner.simulate import USUAL, check_options, sweep, timed_for, write
from wirebench.planner.timing import rates_over
from wirebench.simulation import trace
from wirebench.simulation.compress_rates import Rates
from wirebench.simulation.roofline import GPUS
from wirebench.utils.cli import parser_of


def main(arguments: Sequence[str]) -> int:
    """Simulate what the command line names."""
    options = _parser().parse_args(arguments)
    model = trace.load(trace.find(options.trace, "--trace"))
    check_options(options, model)
    options.compressor = compressors.PLUGINS.words_of(options.compressor)
    rates = rates_over(Rates(options.rates) if options.rates else None, on_gpu=options.gpu is not None)
    timed = timed_for(options, model, rates)
    write(options, model, sweep(options, model, rates), timed)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("simulate", __doc__)
    add = parser.add_argument
    add("--trace", required=True, metavar="NAME", help="a trace in configs/traces, or a path to one")
    add("--workers", type=int, nargs="+", default=[8], metavar="N", help="numbers of workers (8)")
    add_network(parser)
    add_shard(parser)
    add("--gbit", type=float, nargs="+", metavar="RATE", help="rates between machines, in place of the network's")
    add("--batch", type=int, nargs="+", metavar="N", help="images, or what the trace counts, per worker and step")
    add("--speed", type=float, nargs="+", default=[1.0], metavar="X", help="simulate GPUs that are X times as fast (1)")
    add("--schedulers", nargs="+", metavar="NAME[:KEY=VALUE...]", help=f"{' '.join(USUAL)}")
    add("--compressor", default=DENSE, metavar="NAME[:KEY=VALUE...]", help="%(default)s")
    add("--density", type=float, help="of a compressor that has one (its own)")
    add("--collective", default="", metavar="NAME", help="the compressor's own, else ring")
    add("--wire", default="", metavar="FORM", help="format of dense gradients' messages (collective.wire)")
    add("--wire-within", default="", metavar="FORM", help="within machines (collective.wire_within)")
    add("--call-us", type=float, default=0.0, metavar="US", help="own cost of every request (%(default)s)")
    add("--formulas", action="store_true", help="price by the papers' formulas instead of our own plans")
    add("--gpu", metavar="NAME", help=f"compresses ({', '.join(GPUS)}); without it compressing is free")
    add("--rates", type=Path, metavar="FILE", help="what wirebench bench compressors measured, in place of ours")
    add("--compute-jitter", type=float, default=0.0, metavar="S", help="deviation of the log of computing times (0)")
    add("--message-jitter", type=float, default=0.0, metavar="S", help="deviation of the log of message times (0)")
    add("--stragglers", type=float, default=0.0, metavar="SHARE", help="of the workers that are slow in a step (0)")
    add("--slowdown", type=float, default=1.0, metavar="X", help="times as long as others these compute (1)")
    add("--json", type=Path, metavar="FILE", help="write the numbers")
    add("--figure", type=Path, metavar="FILE", help="draw them (.png)")
    add("--timeline", type=Path, metavar="FILE", help="the last line's step, for ui.perfetto.dev")
    add("--chakra", type=Path, metavar="FOLDER", help="the last line's step as Chakra traces, one for each rank")
    return parser
