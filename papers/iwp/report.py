"""The IWP paper's numbers beside what was measured: results/iwp/table.md, and a table for each part below it.

wirebench study iwp report                         from the runs in results/iwp
wirebench study iwp report --runs FOLDER --dir FOLDER
wirebench study iwp report --cluster FOLDER        also what `run --launch` made on ImageNet
"""

import argparse
from pathlib import Path

from papers.accuracy import rows as convergence
from papers.findings import Finding, claims_table, instead, with_unrun
from papers.iwp import claims, measured, network, papers_figures, steps
from papers.iwp.claims import (
    CLAIMED,
    MODELS,
    PUBLISHED,
    of_densification,
    of_intervals,
    of_masks,
    of_ratios,
    of_trainings,
)
from papers.iwp.measured import CountedValues
from papers.iwp.variants import unlabelled
from papers.page import Page
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.record import recorded

COUNTED = {"alexnet": "AlexNet", "resnet50": "ResNet-50", "cifar": "ResNet-8 on CIFAR-10"}
"""Parts that count bytes, and their models."""
NETWORK = "network"


def flags(parser: argparse.ArgumentParser) -> None:
    """Where the runs are, and the report goes."""
    add = parser.add_argument
    add("--runs", type=Path, default=RESULTS / "iwp", metavar="FOLDER", help="PART/VARIANT-TURN (results/iwp)")
    where = RESULTS / "convergence"
    add("--trainings", type=Path, default=where, metavar="FOLDER", help="TASK/METHOD-SEED (results/convergence)")
    add("--cluster", type=Path, metavar="FOLDER", help="also runs on ImageNet, anywhere below FOLDER")
    add("--dir", type=Path, metavar="FOLDER", help="of the report (the runs' folder)")


def findings(options: argparse.Namespace) -> list[Finding]:
    """All claims: judged by whatever runs are there, not run here where these are missing."""
    parts, slow = _parts(options.runs), network.load(options.runs / NETWORK)
    found = [
        *of_ratios(parts),
        *of_masks(),
        *(each for folder in _tasks(options) for each in of_trainings(convergence.load(folder), folder.name)),
        *of_intervals(parts.get("cifar", ())),
        *of_densification(),
        *network.findings(slow, CLAIMED),
    ]
    return with_unrun(instead(found, of_cluster(options.cluster)), CLAIMED.values())


def of_cluster(folder: Path | None) -> list[Finding]:
    """Return the findings from the runs of a cluster."""
    there = claims.on_imagenet(folder)
    counted = claims.counted(there)
    return [
        *(each for each in of_ratios(counted) if each.records),  # not that a model was not run
        *(each for rows in counted.values() for each in of_intervals(rows)),
        *(each for rows in there.timed.values() for each in network.findings(rows, CLAIMED)),
        *(each for model in MODELS for each in of_trainings(claims.methods(there.trained, model), model)),
        *claims.findings(there.trained),
        *steps.findings(there.trained),
    ]


def pages(options: argparse.Namespace) -> list[Page]:
    """The claims, and one page for each part that has runs."""
    parts, slow = _parts(options.runs), network.load(options.runs / NETWORK)
    if not parts and not slow:
        raise UserError(f"{options.runs}: has no runs PART/VARIANT-TURN; measure first")
    out = options.dir or options.runs
    below = [
        Page(
            out / part,
            measured.document(COUNTED[part], rows),
            {"ratios.svg": papers_figures.ratios(COUNTED[part], rows)},
        )
        for part, rows in parts.items()
    ]
    if slow:
        below.append(Page(out / NETWORK, network.document(slow), {"carried.svg": papers_figures.carried(slow)}))
    text = [
        "# IWP beside its paper",
        "",
        '{authors}, "{title}", {published}.'.format(**PUBLISHED.source)
        + " Ours: `wirebench study iwp run`, in several readings of what the paper leaves out. Tables of what was "
        f"measured: {', '.join(f'[{page.folder.name}]({page.folder.name}/table.md)' for page in below)}.",
        "",
        *claims_table(findings(options)),
        NOTES,
        "",
    ]
    trainings = {folder.name: convergence.load(folder) for folder in _tasks(options)}
    drawn = [papers_figures.of_trainings(trainings, slow)]
    if options.cluster:
        there = claims.on_imagenet(options.cluster)
        timed = {(model, unlabelled(row.label)): row.runs for model, rows in there.timed.items() for row in rows}
        drawn.append(papers_figures.of_imagenet({**there.trained, **timed}))
    text += [line for each in drawn for line in each.lines()]
    drawings = {name: figure for each in drawn for name, figure in each.figures.items()}
    return [Page(out, "\n".join(text), drawings), *below]


def _tasks(options: argparse.Namespace) -> list[Path]:
    """Folders of trainings."""
    return recorded.series(options.trainings)


def _parts(runs: Path) -> dict[str, list[CountedValues]]:
    """The runs that counted bytes, by their part."""
    read = {part: measured.load(runs / part) for part in COUNTED}
    return {part: rows for part, rows in read.items() if rows}


NOTES = (
    "Ratios stand twice: with the masks that all workers receive, and by the values alone. They are of the first "
    "steps of a training; the paper's are of a whole one, so that a network which does not learn yet judges none. "
    "TernGrad's is judged by what the claim's number of workers needs. An interval is judged by the mean age of what "
    "waits and one step: the mean interval of coordinates that are sent at random. Of ones that are sent regularly it "
    "is twice the age and one step."
)
