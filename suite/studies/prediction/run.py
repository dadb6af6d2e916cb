"""Forty compositions on emulated clusters, each beside the prediction in its record.

wirebench study prediction run                 all that are not there yet, into results/prediction
wirebench study prediction report              afterwards: table.md and the figure

The machine should have nothing else to do: a prediction is made of what is measured just before, and knows of nothing
that disturbs the steps after it.
"""

import argparse
from pathlib import Path

import compressors
from suite.studies.runner import RESULTS, Launch, Part, measure
from suite.studies.trainings import Cluster, Training
from wirebench.errors import UserError

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


def flags(parser: argparse.ArgumentParser) -> None:
    """What is trained, and where it goes."""
    add = parser.add_argument
    add("--config", type=Path, default=CONFIG, metavar="FILE", help="what is trained (%(default)s)")
    add("--first", type=int, metavar="N", help="only the first N compositions")
    add("--out", type=Path, default=RESULTS / "prediction", metavar="FOLDER", help="where the results go")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """All forty, or the first."""
    if options.first is not None and options.first < 1:
        raise UserError(f"--first: must be positive, got {options.first}")
    return measure(plan(options.config)[: options.first], options.out.resolve(), launch, options.again)


def series(quick: bool) -> list[Part]:
    """All forty; quick: the first ten."""
    return [Part(5, ["--first", "10"])] if quick else [Part(30, [])]


def plan(config: Path) -> list[Training]:
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
                runs.append(Training(folder, label, Cluster(link, hosts), config, tuple(overrides)))
    return runs
