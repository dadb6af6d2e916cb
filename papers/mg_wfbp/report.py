"""The MG-WFBP paper's claims beside the simulator; or of a folder of runs, schedules beside its measured rates.

  wirebench study mg_wfbp report                                        simulated, in half a minute: results/mg-wfbp
  wirebench study mg_wfbp report --dir FOLDER                           the same, elsewhere
  wirebench study mg_wfbp report results/schedules/googlenet_8x10gbit   of what `wirebench study mg_wfbp run` measured
  wirebench study mg_wfbp report --cluster FOLDER                       also what the claims' commands made on a cluster

A report of a folder of runs is written into that folder.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from papers.findings import Finding, claims_table, instead
from papers.mg_wfbp import cluster, cluster_figures, measured, simulated
from papers.page import Page, tables_below
from papers.runner import RESULTS
from wirebench.errors import UserError


def flags(parser: argparse.ArgumentParser) -> None:
    """Which report."""
    add = parser.add_argument
    add("folders", type=Path, nargs="*", metavar="FOLDER", help="runs, whose tables and figures are made instead")
    add("--cluster", type=Path, metavar="FOLDER", help="also runs on a cluster of machines, anywhere below FOLDER")
    add("--dir", type=Path, metavar="FOLDER", help="where the simulated report goes (results/mg-wfbp)")


def pages(options: argparse.Namespace) -> list[Page]:
    """The simulated one, or one for each folder."""
    if not options.folders:
        runs = cluster.load(options.cluster)
        page = simulated.page(options.dir or RESULTS / "mg-wfbp")
        if options.cluster is None:
            return [page]
        drawn = cluster_figures.draw(runs, cluster.rings(options.cluster))
        more = ["", "## On a cluster", "", *claims_table(cluster.findings(runs)), *drawn.lines()]
        text = page.text + "\n".join(more).rstrip() + "\n"
        return [replace(page, text=text, figures={**page.figures, **drawn.figures})]
    for name in ("dir", "cluster"):
        if getattr(options, name) is not None:
            raise UserError(f"--{name}: the report of runs stands in their folder")
    return [measured.page(folder) for folder in options.folders]


def findings(options: argparse.Namespace) -> list[Finding]:
    """Findings of the simulator, or of each folder."""
    if not options.folders:
        measured_there = cluster.findings(cluster.load(options.cluster))
        return instead(simulated.findings(), measured_there)
    return [each for folder in options.folders for each in measured.findings(folder)]


def committed() -> list[list[str]]:
    """The simulated report, and the report of every folder of runs."""
    return [[], *tables_below(RESULTS / "schedules")]
