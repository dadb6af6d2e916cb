"""The gs-SGD paper's Table II beside what was measured of its methods: results/gs-sgd/table.md.

wirebench study gs_sgd report                         from the runs in results/gs-sgd
wirebench study gs_sgd report --runs FOLDER --dir FOLDER
"""

import argparse
from pathlib import Path

from suite.studies.convergence import rows as convergence
from suite.studies.findings import Finding, claims_table, with_unrun
from suite.studies.gs_sgd.beyond import of_runs, of_trainings
from suite.studies.gs_sgd.claims import BRACKETS, PUBLISHED, model_of
from suite.studies.gs_sgd.claims import findings as of_rows
from suite.studies.page import Page
from suite.studies.rows import load
from suite.studies.runner import RESULTS
from wirebench.errors import UserError


def flags(parser: argparse.ArgumentParser) -> None:
    """Where the runs are, and the report goes."""
    add = parser.add_argument
    add("--runs", type=Path, default=RESULTS / "gs-sgd", metavar="FOLDER", help="MODEL/METHOD-TURN (results/gs-sgd)")
    where = RESULTS / "convergence"
    add("--trainings", type=Path, default=where, metavar="FOLDER", help="TASK/METHOD-SEED (results/convergence)")
    add("--dir", type=Path, default=RESULTS / "gs-sgd", metavar="FOLDER", help="of the report (results/gs-sgd)")


def findings(options: argparse.Namespace) -> list[Finding]:
    """Of all folders of runs, and of trainings, that the paper says something of; a claim without either has none."""
    folders = sorted({path.parents[1] for path in options.runs.glob("*/*/method.json")})
    rows = [load(folder) for folder in folders]
    known = {model: those for those in rows if (model := model_of(those[0].runs[0].record["config"]["model"]))}
    tasks = sorted({path.parents[1] for path in options.trainings.glob("*/*/method.json")})
    trained = [each for folder in tasks for each in of_trainings(convergence.load(folder), folder.name)]
    found = [*(each for those in rows for each in of_rows(those)), *of_runs(known), *trained]
    return with_unrun(found, PUBLISHED.claims.values()) if rows else []


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
