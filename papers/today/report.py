"""The tables of what was measured on emulated hosts.

wirebench study today report                   of results/today/speed, order_1gbit, order_100gbit
wirebench study today report --out FOLDER      of FOLDER/speed and so on
"""

import argparse
from pathlib import Path

from papers.findings import Finding
from papers.page import Page
from papers.runner import RESULTS
from papers.today.emulated import measured, ordered
from papers.today.emulated.order import NETWORKS
from papers.today.emulated.speed import SPEED
from wirebench.errors import UserError


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs of the report."""
    where = RESULTS / "today"
    parser.add_argument("--out", type=Path, default=where, metavar="FOLDER", help="of the runs (results/today)")


def pages(options: argparse.Namespace) -> list[Page]:
    """One for each part that has runs."""
    found = [measured.page(options.out / SPEED)] if measured.load(options.out / SPEED) else []
    found += [ordered.page(options.out / name) for name in NETWORKS if ordered.load(options.out / name)]
    if not found:
        raise UserError(f"{options.out}: has no runs PART/METHOD-TURN; measure first")
    return found


def findings(options: argparse.Namespace) -> list[Finding]:
    """The claims on each part that has runs."""
    found = [*measured.findings(measured.load(options.out / SPEED))]
    for name in NETWORKS:
        found += ordered.findings(options.out / name, ordered.load(options.out / name))
    return found


def committed() -> list[list[str]]:
    """The only one."""
    return [[]]
