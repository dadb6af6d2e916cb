#!/usr/bin/env python3
"""Run compressors on both sides of the rate below which they pay, by the planner, beside the best dense composition.

python scripts/bench_break_even.py --topology fitted.toml --measured-at 1gbit --compressors topk fp16 --out FOLDER
python scripts/break_even_report.py FOLDER                           afterwards: table.md in it

The topology is of this machine's emulated hosts, one rank each: scripts/bench_collectives.py on links of the rate
--measured-at, then scripts/fit_network.py. The planner asks it what messages cost, and rescales it. The machine should
have nothing else to do.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import compressors
from scripts import _break_even
from scripts._break_even import Predicted, Side
from scripts._cluster_runs import Planned, check, measure
from scripts._launching import ROOT, Launch, run
from suite.planner.compositions import check_density, check_names, check_positive, density_of
from suite.planner.networks import gbit_of
from suite.planner.probe import copy_bytes_per_second
from suite.planner.rank import Adviser
from wirebench import config, networks, topology_file, trace
from wirebench.cluster.rates import parse_rate
from wirebench.cluster.signals import Interrupted
from wirebench.compress_rates import Rates
from wirebench.errors import UserError
from wirebench.utils.cli import check_outputs, parser_of

CONFIG = Path("configs/tables/break_even_vgg16.toml")
FACTORS = (0.85, 1.15)
BOTH = ("dense", "lossy")


def main(arguments: Sequence[str] | None = None, launch: Launch | None = None) -> int:
    """Run the command line: 0; 1 where a run failed; 2 with one line for a mistake of the user's."""
    try:
        options = _parser().parse_args(arguments)
        check_positive("--factors", options.factors)
        if options.turns < 1:
            raise UserError(f"--turns: must be positive, got {options.turns}")
        names, factors = list(dict.fromkeys(options.compressors)), list(dict.fromkeys(options.factors))
        check_names("--compressors", names, compressors.available())
        check_density(names, options.density)
        shaped = parse_rate(options.measured_at, "--measured-at")
        adviser, hosts = _adviser(options)
        check_outputs(out=options.out / _break_even.FILE)
        found = _break_even.sides(adviser, names, factors, shaped / gbit_of(adviser.topology(None)))
        runs = plan(found, options, hosts)
        check(runs)
        _break_even.save(options.out, Predicted(found, _given(adviser, options)))
        failed = measure(runs, options.out.resolve(), launch or run)
    except (UserError, Interrupted) as error:
        print(f"bench_break_even.py: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"bench_break_even.py: {options.out}: cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    if failed:
        print(f"bench_break_even.py: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def plan(found: Sequence[Side], options: argparse.Namespace, hosts: int) -> list[Planned]:
    """Every side with and without its compressor, then all of them again."""
    return [
        Planned(
            side.folder(which, turn),
            f"{side.compressor} at {side.factor:g}, {which}",
            hosts,
            side.link,
            options.config,
            side.overrides(which, density_of(side.compressor, options.density)),
        )
        for turn in range(options.turns)
        for side in found
        for which in BOTH
    ]


def _given(adviser: Adviser, options: argparse.Namespace) -> dict[str, Any]:
    """What the planner's answers rest on."""
    return {
        "trace": adviser.trace.name,
        "topology": str(options.topology),
        "links_measured_at": options.measured_at,
        "memory_bytes_per_second": round(adviser.bytes_per_second),
        "density": options.density,
    }


def _adviser(options: argparse.Namespace) -> tuple[Adviser, int]:
    """The planner for the config's trace, and the number of hosts."""
    topology = topology_file.resolve(str(options.topology))
    if len(topology.machines) != topology.size:
        raise UserError(f"--topology: {options.topology} has hosts of several ranks; needs one rank a host")
    if not all(branch.links for branch in topology.branches.values()):
        raise UserError(f"--topology: {options.topology} has no link speeds; scripts/fit_network.py measures them")
    own = gbit_of(topology)
    trained = config.load(ROOT / options.config)
    if trained.model.name != "replay" or "trace" not in trained.model.options:
        raise UserError(f"--config: {options.config} names no trace to be replayed, and the planner needs one")
    model = trace.load(trace.find(trained.model.options["trace"]))
    if trained.data.batch_size != model.batch_size or trained.network.dilation != 1:
        raise UserError(f"--config: {options.config}: needs the trace's {model.batch_size} images and no dilation")
    # As a rank has: one thread.
    torch.set_num_threads(1)
    adviser = Adviser(
        model,
        lambda gbit: topology if gbit is None else networks.rescaled(topology, gbit / own),
        Rates(),
        copy_bytes_per_second(),
        options.density,
    )
    return adviser, topology.size


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(Path(__file__).stem, __doc__)
    add = parser.add_argument
    add("--config", type=Path, default=CONFIG, metavar="FILE", help="what is trained (%(default)s)")
    add("--topology", type=Path, required=True, metavar="FILE", help="of the emulated hosts")
    add("--measured-at", required=True, metavar="RATE", help="what their links were shaped to when it was measured")
    add("--compressors", nargs="+", required=True, metavar="NAME")
    add("--density", type=float, help="of compressors that have one (each one's own)")
    add("--factors", type=float, nargs="+", default=list(FACTORS), metavar="X", help="of the break-even (%(default)s)")
    add("--turns", type=int, default=2, help="runs of each composition (%(default)s)")
    add("--out", type=Path, default=ROOT / "results/break_even", metavar="FOLDER", help="where the results go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
