"""Inject faults into an elastic job on an emulated cluster, and report what they cost.

  wirebench chaos --trials 30
  wirebench chaos --trials 300 --mtbf 60 --out results/runs/chaos
  wirebench chaos --trials 12 --kinds sigkill nan none --mtbf 10
  wirebench chaos --trials 30 --plain
  wirebench chaos --trials 30 --kinds sigkill --set compressor.name=none scheduler.name=outer scheduler.every=32
  wirebench chaos --report

A later call with the same --out resumes the series of trials. docs/chaos.md describes the faults, the measurements and
the bounds. The exit code is 1 if a bound is exceeded.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wirebench.chaos import campaign, report, trials_file
from wirebench.chaos.campaign import Campaign
from wirebench.chaos.faults import FAULTS
from wirebench.chaos.job import JobSetting
from wirebench.cluster.signals import Relay
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.utils.cli import check_outputs, parser_of
from wirebench.utils.package import CONFIGS

OUT = Path("results/runs/chaos")


def main(arguments: Sequence[str]) -> int:
    """Make the trials and print what they show; 1 where a bound is not held, else 0."""
    options = _parse(arguments)
    path = options.out.resolve() / ("plain.jsonl" if options.plain else "elastic.jsonl")
    if options.report:
        return _show(*trials_file.load(path))
    more = tuple(options.set)
    setting = JobSetting(options.hosts, options.link, not options.plain, bool(options.mirror), options.timeout, more)
    _refuse_unusable(setting)
    planned = Campaign(setting, campaign.parse_kinds(options.kinds), options.mtbf, options.seed)
    check_outputs(out=path)
    planned.done(path)
    with Relay():
        lines = campaign.run(planned, path, options.trials)
    return _show(planned.header(), lines)


def _show(header: dict[str, Any], lines: list[dict[str, Any]]) -> int:
    """Print the report; 1 where a bound is not held, else 0."""
    told = report.report_of(lines, header)
    print("\n".join(told.lines))
    return int(not told.held)


def _refuse_unusable(setting: JobSetting) -> None:
    """UserError for settings that no job can have, or that faults rely on."""
    for word in setting.more:
        if not word.startswith(("compressor.", "scheduler.", "optimizer.", "collective.")):
            raise UserError(f"--set: {word!r}: only compressor, scheduler, optimizer and collective can be set")
    # Where a run lies is the job's own.
    resolve(loader.load(CONFIGS / "synthetic/toy.toml", [*setting.words(), "output.dir=here"]))


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser, usual = parser_of("chaos", __doc__), JobSetting()
    parser.add_argument("--trials", type=int, default=len(FAULTS), metavar="N", help="faults in all (%(default)s)")
    parser.add_argument("--kinds", nargs="+", default=list(FAULTS), metavar="KIND", help="of: " + ", ".join(FAULTS))
    parser.add_argument("--mtbf", type=float, default=60.0, metavar="S", help="mean seconds between faults (60)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of faults, victims and waits (0)")
    parser.add_argument("--hosts", type=int, default=usual.hosts, metavar="N", help="hosts of one rank (%(default)s)")
    parser.add_argument("--link", default=usual.link, metavar="RATE", help="rate of the links (%(default)s)")
    parser.add_argument("--mirror", type=int, choices=(0, 1), default=1, help="train.mirror (%(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=usual.timeout_seconds, metavar="S", help="engine.timeout_seconds (%(default)s)"
    )
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="the job's compressor and schedule"
    )
    parser.add_argument("--plain", action="store_true", help="checkpoints in place of train.elastic, as a baseline")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help="results and logs (%(default)s)")
    parser.add_argument("--report", action="store_true", help="make no trials: print what those in --out show")
    options = parser.parse_args(arguments)
    if not 2 <= options.hosts <= 250:
        parser.error(f"--hosts: must be 2 to 250, got {options.hosts}")
    if options.trials < 1:
        parser.error(f"--trials: must be at least 1, got {options.trials}")
    if not 0 < options.mtbf < float("inf"):
        parser.error(f"--mtbf: must be above 0, got {options.mtbf:g}")
    if not 1 <= options.timeout < float("inf"):
        parser.error(f"--timeout: must be at least 1, got {options.timeout:g}")
    return options
