"""The gs-SGD paper's Table II beside what was measured of its methods: results/gs-sgd/table.md.

wirebench study gs_sgd report                         from the runs in results/gs-sgd
wirebench study gs_sgd report --runs FOLDER --dir FOLDER
"""

import argparse
from pathlib import Path

from suite.studies.findings import Finding, claims_table
from suite.studies.gs_sgd.claims import BRACKETS, PUBLISHED
from suite.studies.gs_sgd.claims import findings as of_rows
from suite.studies.page import Page
from suite.studies.rows import load
from suite.studies.runner import RESULTS
from wirebench.errors import UserError


def flags(parser: argparse.ArgumentParser) -> None:
    """Where the runs are, and the report goes."""
    add = parser.add_argument
    add("--runs", type=Path, default=RESULTS / "gs-sgd", metavar="FOLDER", help="MODEL/METHOD-TURN (results/gs-sgd)")
    add("--dir", type=Path, default=RESULTS / "gs-sgd", metavar="FOLDER", help="of the report (results/gs-sgd)")


def findings(options: argparse.Namespace) -> list[Finding]:
    """Of all folders of runs that the paper says something of."""
    folders = sorted({path.parents[1] for path in options.runs.glob("*/*/method.json")})
    return [each for folder in folders for each in of_rows(load(folder))]


def pages(options: argparse.Namespace) -> list[Page]:
    """One table."""
    found = findings(options)
    if not found:
        raise UserError(f"{options.runs}: has no MODEL/METHOD-TURN of gs_sgd and a rival; measure first")
    setting = next(iter(PUBLISHED.claims.values())).setting
    text = [
        "# gs-SGD beside its paper",
        "",
        '{authors}, "{title}", {published}.'.format(**PUBLISHED.source)
        + f" The paper's setting: {setting}. Ours: `wirebench study gs_sgd run`, in several readings of what the paper "
        "leaves out. The records lie beside this table.",
        "",
        *claims_table(found),
        BRACKETS,
        "",
    ]
    return [Page(options.dir, "\n".join(text))]


def committed() -> list[list[str]]:
    """The only one."""
    return [[]]
