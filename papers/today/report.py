"""The tables of what was measured on emulated hosts.

wirebench study today report                   of results/today/order_1gbit and order_100gbit
wirebench study today report --out FOLDER      of FOLDER/order_1gbit and so on
"""

import argparse
from pathlib import Path

from papers.findings import Finding
from papers.page import Page
from papers.runner import RESULTS
from papers.today.emulated import ordered
from papers.today.emulated.order import NETWORKS
from wirebench.errors import UserError


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for the runs of the report."""
    where = RESULTS / "today"
    parser.add_argument("--out", type=Path, default=where, metavar="FOLDER", help="of the runs (results/today)")


def pages(options: argparse.Namespace) -> list[Page]:
    """One for each part that has runs."""
    found = [ordered.page(options.out / name) for name in NETWORKS if ordered.load(options.out / name)]
    if not found:
        raise UserError(f"{options.out}: has no runs PART/METHOD-TURN; measure first")
    return found


def findings(options: argparse.Namespace) -> list[Finding]:
    """The claims on each part that has runs."""
    folders = [options.out / name for name in NETWORKS]
    return [each for folder in folders for each in ordered.findings(folder, ordered.load(folder))]


def committed() -> list[list[str]]:
    """The only one."""
    return [[]]
