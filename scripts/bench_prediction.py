#!/usr/bin/env python3
"""Forty compositions on emulated clusters, each beside the prediction in its record.

python scripts/bench_prediction.py                 all that are not there yet, into results/prediction
python scripts/errors.py results/prediction        afterwards: table.md and the figure

The machine should have nothing else to do: a prediction is made of what is measured just before, and knows of nothing
that disturbs the steps after it.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import compressors
from scripts._cluster_runs import Planned, check, measure
from scripts._launching import ROOT, Launch, run
from wirebench.cluster.signals import Interrupted
from wirebench.errors import UserError
from wirebench.utils.cli import parser_of

CONFIG = Path("configs/tables/prediction_resnet20.toml")
LINKS = ("100mbit", "1gbit")
HOSTS = (2, 3, 4, 8)
COMPOSITIONS = (
    (
        ("wfbp", "none", "native"),
        ("mg_wfbp", "none", "ring"),
        ("optimal", "topk", "native"),
        ("dear", "none", "ring"),
        ("fused", "powersgd", "native"),
    ),
    (
        ("sync_easgd", "gs_sgd", "tree"),
        ("naive", "none", "halving_doubling"),
        ("mg_wfbp_later", "fp16", "native"),
        ("optimal", "none", "ring"),
        ("wfbp", "gtopk", "tree"),
    ),
)
"""Scheduler, compressor and collective: the two lists take turns over the clusters."""
DENSITY = 0.01


def main(arguments: Sequence[str] | None = None, launch: Launch | None = None) -> int:
    """Run the command line: 0; 1 where a run failed; 2 with one line for a mistake of the user's."""
    try:
        options = _parser().parse_args(arguments)
        runs = plan(options.config)
        check(runs)
        failed = measure(runs, options.out.resolve(), launch or run, again=options.again)
    except (UserError, Interrupted) as error:
        print(f"bench_prediction.py: {error}", file=sys.stderr)
        return error.exit_code
    if failed:
        print(f"bench_prediction.py: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def plan(config: Path) -> list[Planned]:
    """Five compositions on every cluster."""
    runs = []
    for row, link in enumerate(LINKS):
        for column, hosts in enumerate(HOSTS):
            for scheduler, compressor, collective in COMPOSITIONS[(row + column) % 2]:
                label = f"{scheduler}, {compressor}, {collective}"
                overrides = [f"scheduler.name={scheduler}", f"compressor.name={compressor}"]
                if "density" in compressors.PLUGINS.options(compressor):
                    overrides.append(f"compressor.density={DENSITY:g}")
                folder = f"{hosts}x{link}-{scheduler}-{compressor}-{collective}"
                overrides.append(f"collective.name={collective}")
                runs.append(Planned(folder, label, hosts, link, config, tuple(overrides)))
    return runs


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(Path(__file__).stem, __doc__)
    add = parser.add_argument
    add("--config", type=Path, default=CONFIG, metavar="FILE", help="what is trained (%(default)s)")
    add("--again", action="store_true", help="also those that are there already")
    add("--out", type=Path, default=ROOT / "results/prediction", metavar="FOLDER", help="where the results go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
