#!/usr/bin/env python3
"""Train with every compressor on an emulated cluster, taking turns: time per step, phases, and bytes on the wire.

python scripts/bench_methods.py --config configs/tables/methods_vgg16.toml       all methods, 4 hosts, 1 Gbit/s
python scripts/bench_methods.py --config ... --methods dense gs_sgd sketched_sgd --turns 3
python scripts/methods_report.py results/methods/vgg16                            afterwards: table.md and the figure

The machine should have nothing else to do. A method that fails is reported and the others go on; exit code 1 then. Its
earlier run, if there is one, stays. A method that diverges has not failed, its row says so.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import compressors
from scripts._cluster_runs import Planned, check, measure
from scripts._launching import ROOT, Launch, run
from wirebench.cluster.signals import Interrupted
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.utils.cli import parser_of

RESULTS = ROOT / "results/methods"
FUSED = "scheduler.name=fused"
BASELINES: dict[str, list[str]] = {
    "dense": ["compressor.name=none", FUSED],
    "dense, one message": ["compressor.name=none"],
    "DDP": ["compressor.name=none", "scheduler.name=native"],
}
"""What every method is compared with, by label."""

SETTINGS: dict[str, list[str]] = {
    "fp16": [FUSED],
    "bf16": [FUSED],
    # A replay sends noise of deviation 1e-4. What is held back walks at random, and reaches ten times that in some 100
    # steps, so that about 1 % goes in each.
    "threshold": ["compressor.threshold=1e-3"],
}
"""What a compressor is run with; else `density` where it has that option, in one message per step."""

WIDER = ("gs_sgd", "sketched_sgd")
WIDE_SUFFIX, WIDE_COLUMNS = " c=10k", 10
"""These also with the columns of the released Sketched-SGD, ten for each entry; the default is four."""


def main(arguments: Sequence[str] | None = None, launch: Launch | None = None) -> int:
    """Run the command line: 0; 1 where a method failed; 2 with one line for a mistake of the user's."""
    try:
        options = _parser().parse_args(arguments)
        chosen = plan(options.methods, options.density)
        given = loader.load(ROOT / options.config, options.set)
        if options.turns < 1:
            raise UserError(f"--turns: must be positive, got {options.turns}")
        if not 0 < options.density <= 1:
            raise UserError(f"--density: lies in (0, 1], got {options.density:g}")
        runs = planned(options, chosen)
        check(runs)
        out = options.out or RESULTS / _name(given.name)
        failed = measure(runs, out.resolve(), launch or run)
    except (UserError, Interrupted) as error:
        print(f"bench_methods.py: {error}", file=sys.stderr)
        return error.exit_code
    if failed:
        print(f"bench_methods.py: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def plan(names: Sequence[str] | None, density: float) -> dict[str, list[str]]:
    """Overrides by label, in the order of their turns: baselines, then every compressor, or those that are named."""
    known = dict(BASELINES)
    for name in compressors.available():
        if name != "none":
            options = compressors.PLUGINS.options(name)
            sparse = [f"compressor.density={density:g}"] if "density" in options else []
            known[name] = [f"compressor.name={name}", *SETTINGS.get(name, sparse)]
            if name in WIDER:
                known[name + WIDE_SUFFIX] = [*known[name], f"compressor.ratio={WIDE_COLUMNS * density:g}"]
    for name in names or ():
        if name not in known:
            raise UserError(f"--methods: no {name!r}; there is: {', '.join(known)}")
    return {name: known[name] for name in (dict.fromkeys(names) if names else known)}


def planned(options: argparse.Namespace, chosen: dict[str, list[str]]) -> list[Planned]:
    """All runs: every method once, then every method again."""
    return [
        Planned(
            f"{label.replace(', ', '-').replace(' ', '_')}-{turn}",
            label,
            options.hosts,
            options.link,
            options.config,
            (*overrides, *options.set),
        )
        for turn in range(options.turns)
        for label, overrides in chosen.items()
    ]


def _name(config_name: str) -> str:
    """Of the folder of a config's results: methods-vgg16 has them in vgg16."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", config_name.removeprefix("methods-")).strip(".-") or "run"


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(Path(__file__).stem, __doc__)
    add = parser.add_argument
    vgg16 = Path("configs/tables/methods_vgg16.toml")
    add("--config", type=Path, default=vgg16, metavar="FILE", help="what is trained (%(default)s)")
    add("--methods", nargs="+", metavar="NAME", help="compressors, or 'dense', 'DDP', ... (all)")
    add("--density", type=float, default=0.01, help="of the sparse methods (%(default)s)")
    add("--hosts", type=int, default=4, help="hosts of one worker each (%(default)s)")
    add("--link", default="1gbit", help="rate of every host's link (%(default)s)")
    add("--turns", type=int, default=2, help="runs of each method (%(default)s)")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings, of all methods")
    add("--out", type=Path, metavar="FOLDER", help="where the results go (results/methods, by the config's name)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
