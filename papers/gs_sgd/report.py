"""The gs-SGD paper's Table II beside what was measured of its methods: results/gs-sgd/table.md.

wirebench study gs_sgd report                         from the runs in results/gs-sgd
wirebench study gs_sgd report --runs FOLDER --dir FOLDER
wirebench study gs_sgd report --cluster FOLDER        also what `run --launch` made on a cluster
"""

import argparse
from pathlib import Path

from papers.accuracy import rows as convergence
from papers.findings import Finding, claims_table, instead, with_unrun
from papers.gs_sgd import cluster, figures, throughput
from papers.gs_sgd.claims import findings as of_rows
from papers.gs_sgd.claims import model_of, of_epochs, of_runs, of_sweeps, of_trainings
from papers.gs_sgd.variants import PUBLISHED
from papers.page import Page
from papers.rows import Row, load
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.record import recorded

TRAININGS = RESULTS / "convergence"


def flags(parser: argparse.ArgumentParser) -> None:
    """Where the runs are, and the report goes."""
    add = parser.add_argument
    add("--runs", type=Path, default=RESULTS / "gs-sgd", metavar="FOLDER", help="MODEL/METHOD-TURN (results/gs-sgd)")
    add("--trainings", type=Path, default=TRAININGS, metavar="FOLDER", help="TASK/METHOD-SEED (results/convergence)")
    add("--cluster", type=Path, metavar="FOLDER", help="also runs on a cluster, anywhere below FOLDER")
    add("--dir", type=Path, default=RESULTS / "gs-sgd", metavar="FOLDER", help="of the report (results/gs-sgd)")


def findings(options: argparse.Namespace) -> list[Finding]:
    """All claims: judged by the folders of runs, and of trainings, that are there, not run here without either."""
    rows = _rows(options)
    if not options.trainings.is_dir() and options.trainings != TRAININGS:
        raise UserError(f"--trainings: {options.trainings}: is no folder; expected TASK/METHOD-SEED below it")
    found = [*(each for those in rows.values() for each in of_rows(those)), *of_runs(rows)]
    for folder in _tasks(options):
        trained = convergence.load(folder)
        found += [*of_trainings(trained, folder.name), *of_epochs(trained, folder.name)]
    return with_unrun(instead(found, of_cluster(options.cluster)), PUBLISHED.claims.values())


def of_cluster(folder: Path | None) -> list[Finding]:
    """Return the findings from the runs of a cluster."""
    measured = cluster.load(folder)
    timed = [*(each for rows in measured.rows.values() for each in of_rows(rows)), *of_runs(measured.rows)]
    found = [cluster.in_its_setting(each, measured.rows) for each in timed]
    for model, methods in measured.methods.items():
        task = f"{model} on a cluster"
        found += [*of_trainings(methods, task), *of_epochs(methods, task), *of_sweeps(methods, task)]
    return found


def _tasks(options: argparse.Namespace) -> list[Path]:
    """Folders of trainings."""
    return recorded.series(options.trainings)


def _rows(options: argparse.Namespace) -> dict[str, list[Row]]:
    """By the paper's name of their model."""
    found = map(load, recorded.series(options.runs))
    models = ((model_of(rows[0].runs[0].record["config"]["model"]), rows) for rows in found)
    return {model: rows for model, rows in models if model}


def pages(options: argparse.Namespace) -> list[Page]:
    """One table of claims, one of throughputs for each network, and where a step's time goes."""
    found, rows = findings(options), _rows(options)
    if not rows:
        raise UserError(f"{options.runs}: has no MODEL/METHOD-TURN of gs_sgd and a rival; measure first")
    setting = next(iter(PUBLISHED.claims.values())).setting
    drawn = figures.of(rows, [convergence.load(folder) for folder in _tasks(options)])
    text = [
        "# gs-SGD beside its paper",
        "",
        '{authors}, "{title}", {published}.'.format(**PUBLISHED.source)
        + f" The paper's setting: {setting}. A claim about time is judged by the algorithms as printed, with k = 1 % "
        "of the parameters for all and 5 rows of 4 k columns for both sketches. The tables below have other readings "
        "of what the paper leaves out. By bytes: the rival's bytes over gs-SGD's, of the worker that sends most. Made "
        "by `wirebench study gs_sgd run`.",
        "",
        *claims_table(found),
        *(line for model, those in rows.items() for line in throughput.section(model, those)),
        throughput.NOTE,
        "",
        *drawn.lines(),
    ]
    pictures = drawn.figures
    if options.cluster:
        there = cluster.load(options.cluster)
        more = figures.of(there.rows, list(there.methods.values()), "cluster_")
        text += ["## On a cluster", "", *more.lines()]
        pictures = {**pictures, **more.figures}
    return [Page(options.dir, "\n".join(text), pictures)]
