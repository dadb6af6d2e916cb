"""Train with the gs-SGD paper's three methods on 4 emulated hosts, taking turns, on each of its models.

wirebench study gs_sgd run                   VGG-16 and ResNet-20, 4 hosts, 1 Gbit/s, into results/gs-sgd
wirebench study gs_sgd run --models vgg16 --turns 1
wirebench study gs_sgd report                afterwards: the paper's Table II beside what was measured

The methods as printed run at 0.4 % and 0.1 % too: where the paper's warm-up ends, and what DGC and gTop-k have. The
configs belong to the study `methods`, which trains with every compressor and compares each with dense.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

from papers.gs_sgd.paper import READINGS
from papers.gs_sgd.variants import DENSE_OF, on_cluster, readings, sweep, variants
from papers.launched import FEW, Composition, Trained
from papers.methods import run as methods
from papers.runner import RESULTS, Launch, Part, measure
from wirebench.errors import UserError

MODELS = ("vgg16", "resnet20")
METHODS = ("gtopk", "gs_sgd", "sketched_sgd")
FOUR = ("1+1+1+1",)


def _of_both(rows: Callable[[str], Mapping[str, Composition]]) -> dict[str, Composition]:
    """Rows of both networks, the network first in their labels."""
    return {f"{model} {label}": row for model in MODELS for label, row in rows(model).items()}


def _dense(model: str) -> dict[str, Composition]:
    return {"dense": (DENSE_OF[model], ())}


ON_CLUSTER = {
    "speed": Trained(
        "Table II, Fig. 4 and 5, at densities of 1 %, 0.4 % and 0.1 %",
        _of_both(lambda model: {**_dense(model), **on_cluster(model)}
                 | {label: row for share in READINGS for label, row in on_cluster(model, share).items()}),
        (*FEW, "compressor.warmup=[]"), layouts=FOUR, needs="data",
    ),
    "training": Trained(
        "Fig. 2 and 3",
        _of_both(lambda model: {**_dense(model), **on_cluster(model)}),
        repeats=3, seeds=True, layouts=FOUR, needs="data",
    ),
    "sweep": Trained("Fig. 6 and 7", _of_both(sweep), repeats=3, seeds=True, layouts=FOUR, needs="data"),
}  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    """Which models, on what."""
    add = parser.add_argument
    add("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME", help="vgg16, resnet20 (both)")
    add("--density", type=float, default=0.01, help="of all methods; the paper states none (%(default)s)")
    add("--hosts", type=int, default=4, help="hosts of one worker each (%(default)s)")
    add("--link", default="1gbit", help="rate of every host's link (%(default)s)")
    add("--turns", type=int, default=5, help="runs of each method (%(default)s)")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings, of all methods")
    add("--out", type=Path, default=RESULTS / "gs-sgd", metavar="FOLDER", help="where the results go, by model")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """Every method in turn, model by model."""
    if options.turns < 1:
        raise UserError(f"--turns: must be positive, got {options.turns}")
    if not 0 < options.density <= 1:
        raise UserError(f"--density: lies in (0, 1], got {options.density:g}")
    names = (*METHODS, *variants(options.density))
    chosen = methods.plan(names, options.density) | readings()
    configs = {model: Path(f"configs/tables/methods_{model}.toml") for model in dict.fromkeys(options.models)}
    planned = {
        (options.out / model).resolve(): methods.planned(options, path, chosen, options.link)
        for model, path in configs.items()
    }
    return measure(planned, launch, options.again)


def series(quick: bool) -> list[Part]:
    """Both networks; quick: one turn of each variant, of few steps."""
    few = ["--turns", "1", "--set", "train.max_steps=14", "train.warmup_steps=6"]
    return [Part(6, few)] if quick else [Part(38, [])]
