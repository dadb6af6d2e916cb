"""Explain why a run is not faster: where its step time goes, what is wrong, and what would help most.

wirebench diagnose results/runs/A
wirebench diagnose --link 1gbit results/runs/A
wirebench diagnose --try results/runs/A
wirebench diagnose --kineto rank0.json.gz rank1.json.gz
wirebench diagnose --flight nccl_trace_rank_0 nccl_trace_rank_1
wirebench cluster run --hosts 4 --link 1gbit -- wirebench diagnose results/runs/A --measure

A run that is under way is diagnosed from what it has logged so far. Launch --measure as the run was, on every rank.
--try interleaves short runs: the run unchanged, and with each of the two changes that save most. --kineto reads what
PyTorch's profiler has recorded of any job under DDP, FSDP2 or Horovod, a file for each rank (wirebench.watch writes
them). --flight reads the dumps of PyTorch's flight recorder, and names the ranks that a hanging job waits for.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from wirebench.comm.launch import launched
from wirebench.diagnose import causes, evidence, flight, kineto, measure, render, trial
from wirebench.planner import known as trained
from wirebench.topology.presets import NETWORKS
from wirebench.topology.rates import parse_rate
from wirebench.utils.cli import parser_of

STEPS = 30
"""Steps of a short run that count."""


def main(arguments: Sequence[str]) -> int:
    """Look into the run that the command line names; 0 whatever is found."""
    options = _parse(arguments)
    if options.flight:
        return _fly(options)
    known = kineto.read(options.kineto) if options.kineto else evidence.read(options.run)
    nominal = None
    if options.link in NETWORKS:
        nominal = NETWORKS[options.link].bytes_per_second
        known = dataclasses.replace(known, nominal_start=NETWORKS[options.link].latency_seconds)
    elif options.link:
        nominal = parse_rate(options.link) / 8
    measured = None
    if options.measure:
        measured = measure.alone(known.record, options.run)
        if measured is None:
            return 0  # rank 0 tells
        nominal = nominal or measured.nominal
        known = dataclasses.replace(known, alone=measured.link)
    nominal = nominal or known.nominal
    found = causes.findings(known, nominal, trained.load)
    told = render.as_json(known, found, nominal)
    if not options.json:
        lines = render.measured_lines(measured, known, nominal) if measured else []
        print("\n".join([*lines, *render.lines(known, found, nominal)]), flush=True)
    if options.try_it:
        folder = options.run if options.run.is_dir() else options.run.parent
        tried = trial.attempt(known, found, folder, options.steps)
        told["trial"] = None if tried is None else render.trial_json(tried)
        if not options.json:
            print("\n".join(render.trial_lines(tried, known) if tried else ["", render.NOTHING_TO_TRY]))
    if options.json:
        print(json.dumps(told, indent=1))
    return 0


def _fly(options: argparse.Namespace) -> int:
    """Say who waits for whom, by the flight recorder's dumps."""
    found = flight.read(options.flight)
    print(json.dumps(flight.as_json(found), indent=1) if options.json else "\n".join(flight.lines(found)))
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of("diagnose", __doc__)
    parser.add_argument("run", type=Path, nargs="?", metavar="RUN", help="a run's folder, or a record.json")
    parser.add_argument(
        "--kineto", type=Path, nargs="+", metavar="FILE", help="what PyTorch's profiler has recorded, a file a rank"
    )
    parser.add_argument(
        "--flight", type=Path, nargs="+", metavar="FILE", help="dumps of PyTorch's flight recorder, a file a rank"
    )
    parser.add_argument("--link", metavar="RATE", help="what the network should carry, e.g. 1gbit, or its name: 10gbe")
    more = parser.add_mutually_exclusive_group()
    more.add_argument("--measure", action="store_true", help="measure the network alone, on every rank of a job")
    more.add_argument(
        "--try",
        dest="try_it",
        action="store_true",
        help="interleave short runs: unchanged, and with two changes",
    )
    parser.add_argument("--steps", type=int, metavar="N", help=f"counted steps of a short run ({STEPS})")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(arguments)
    sources = [options.run, options.kineto, options.flight]
    if sum(each is not None for each in sources) != 1:
        parser.error("RUN, --kineto FILE... or --flight FILE...: give one of them")
    if options.run is None and (options.measure or options.try_it):
        parser.error("--measure and --try: need a RUN of train.py")
    if options.flight and options.link:
        parser.error("--link: does not concern --flight")
    if options.run is None and options.steps is not None:
        parser.error("--steps: does not concern --kineto and --flight")
    options.steps = STEPS if options.steps is None else options.steps
    if options.steps < 1:
        parser.error(f"--steps: must be at least 1, got {options.steps}")
    if options.try_it and not launched().alone:
        parser.error("--try: launches runs itself, so start it alone")
    return options
