"""Count what IWP sends of real models' gradients, how long a coordinate waits, and what a slow network carries.

  wirebench study iwp run --data FOLDER --images FOLDER    into results/iwp; FOLDERs: CIFAR-10, images in classes
  wirebench study iwp run --data FOLDER                    without AlexNet and ResNet-50
  wirebench study iwp report                               afterwards: the paper's numbers beside what was measured

The first parts are alexnet and resnet50 (images of 224 pixels, 4 virtual workers, a few dozen steps). Then come
network (dense and IWP take turns on emulated hosts; needs root) and cifar (ResNet-8, 8 epochs). Runs that are there
are not made again.
"""

import argparse
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from papers.iwp import images
from papers.iwp.variants import FIXED, IWP, NETWORK, VARIANTS, named
from papers.launched import CIFAR10, FEW, Trained, refuse_no_cifar10
from papers.runner import RESULTS, ROOT, Launch, Part, measure, refuse_not_positive, within
from papers.trainings import OwnCluster, Training
from wirebench.config import loader
from wirebench.errors import UserError

EPOCH = 10
"""Steps of an epoch of linked images."""


@dataclass(frozen=True)
class ImportanceRuns:
    """Runs of one model: its config, which option says where its data is, and what is trained with it."""

    config: str
    source: str
    variants: Mapping[str, tuple[str, ...]]
    waiting: bool = False


PARTS = {
    "alexnet": ImportanceRuns("configs/tables/iwp_alexnet.toml", "images", VARIANTS),
    "resnet50": ImportanceRuns("configs/tables/iwp_resnet50.toml", "images", VARIANTS),
    "network": ImportanceRuns("configs/tables/iwp_resnet20.toml", "data", NETWORK),
    "cifar": ImportanceRuns("configs/tables/convergence_quick.toml", "data", VARIANTS, waiting=True),
}


PAPERS = "configs/papers/imagenet_{}.toml"
BASES = {model: f"configs/imagenet_{model}_dense.toml" for model in ("alexnet", "resnet50")}
_FIXED = {f"{FIXED} {each:g}": (f"compressor.threshold={each:g}",) for each in (0.05, 0.1)}
_WAITING = ("compressor.waiting=true",)
_HISTOGRAMS = ('compressor.histograms=["layer1.0.conv1.weight", "layer1.0.downsample.0.weight"]',)
_ONE = "scheduler.name=sync_easgd"
ON_CLUSTER = {
    "table": Trained(
        "Table I, Fig. 2 to 6",
        {
            "alexnet baseline": (BASES["alexnet"], ()),
            "alexnet terngrad": (PAPERS.format("alexnet_terngrad"), ()),
            "alexnet fixed 0.05": (PAPERS.format("alexnet_iwp"), _WAITING),
            "alexnet layer-wise": (PAPERS.format("alexnet_iwp_layerwise"), _WAITING),
            "resnet50 baseline": (BASES["resnet50"], ()),
            "resnet50 fixed 0.05": (PAPERS.format("resnet50_iwp"), (*_WAITING, *_HISTOGRAMS)),
            "resnet50 layer-wise": (PAPERS.format("resnet50_iwp_layerwise"), (*_WAITING, *_HISTOGRAMS)),
        },
        ("output.health_every=500",), repeats=3, seeds=True, needs="images", keeps=("steps.jsonl",),
    ),
    "network": Trained(
        "Fig. 7 and 8",
        {
            "resnet50 dense": (BASES["resnet50"], ()),
            **{f"resnet50 {label}": (PAPERS.format("resnet50_iwp"), words) for label, words in _FIXED.items()},
            # What they send is a matter of their density alone, whether they train or not.
            **{f"{model} dgc 0.1%": (base, (*VARIANTS["dgc 0.1%"], _ONE)) for model, base in BASES.items()},
        },
        FEW, needs="images", keeps=("steps.jsonl",),
    ),
}  # fmt: skip
HOSTS, LINK, TURNS = 4, "10mbit", 5
"""Defaults of the part network."""
ALL = [*NETWORK, *(label for label in VARIANTS if label not in NETWORK)]


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for what is trained, on what data, and where."""
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help=f"folder that has {CIFAR10}; without it: no network, no cifar")
    add("--images", type=Path, metavar="FOLDER", help="has train/CLASS and val/CLASS; without it: images are left out")
    add(
        "--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="NAME", help=f"{', '.join(PARTS)} (all)"
    )
    add("--methods", nargs="+", choices=ALL, metavar="NAME", help="dense, 'fixed 0.05', terngrad, ... (all of a part)")
    add("--steps", type=int, default=0, metavar="N", help="end every run after N steps, to try the study (0: run on)")
    add("--hosts", type=int, help=f"emulated hosts of one worker each, of the part network ({HOSTS})")
    add("--link", help=f"rate of every host's link, of the part network ({LINK})")
    add("--turns", type=int, help=f"runs of each method of the part network ({TURNS})")
    add("--out", type=Path, default=RESULTS / "iwp", metavar="FOLDER", help="results go to FOLDER/PART")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """All runs that are not there yet; parts without data are left out, and named."""
    if options.steps < 0:
        raise UserError(f"--steps: is positive, or 0 for whole runs, got {options.steps}")
    chosen = parts(options)
    _settle(options, chosen)
    out = options.out.resolve()
    linked = out / ".images"
    try:
        planned = [each for name in chosen for each in trainings(name, options, linked)]
        if not planned:
            raise UserError(f"--methods: {', '.join(chosen)} {'has' if len(chosen) == 1 else 'have'} none of these")
        return measure({out: planned}, launch, options.again)
    finally:
        shutil.rmtree(linked, ignore_errors=True)


def _settle(options: argparse.Namespace, chosen: Sequence[str]) -> None:
    """Fill in what is about the network and was not said; UserError where it was, and the network is not run."""
    for name, default in (("hosts", HOSTS), ("link", LINK), ("turns", TURNS)):
        if getattr(options, name) is None:
            setattr(options, name, default)
        elif "network" not in chosen:
            raise UserError(f"--{name}: is of the part network, and only {', '.join(chosen)} would run")
    refuse_not_positive(options, "turns")


def series(quick: bool) -> list[Part]:
    """The network and CIFAR-10, then what needs images in classes; quick: one turn, and a few steps of two methods."""
    cifar, images_of = ["--data", "{data}", "--parts"], ["--images", "{images}", "--parts", "alexnet", "resnet50"]
    if not quick:
        return [Part(60, [*cifar, "network", "cifar"]), Part(60, images_of)]
    few = ["--methods", "fixed 0.05", "terngrad", "--steps", "2"]
    return [Part(2, [*cifar, "network", "--turns", "1", "--steps", "15"]), Part(3, [*images_of, *few])]


def parts(options: argparse.Namespace) -> list[str]:
    """The parts that were asked for and have data, in the order of their runs; UserError where none has."""
    wanted = [name for name in PARTS if name in options.parts]
    given = [name for name in wanted if getattr(options, PARTS[name].source) is not None]
    if not given:
        needs = dict.fromkeys(f"--{PARTS[name].source}" for name in wanted)
        raise UserError(f"{' and '.join(needs)}: which folder has the images of {', '.join(wanted)}?")
    refuse_no_cifar10(options.data)
    if options.images is not None:
        images.check(options.images)
    for name in wanted:
        if name not in given:
            print(f"left out without --{PARTS[name].source}: {name}", file=sys.stderr)
    return given


def trainings(name: str, options: argparse.Namespace, linked: Path) -> list[Training]:
    """The runs of a part, the variants in turn; links the images that they need."""
    part = PARTS[name]
    root = options.data if part.source == "data" else _link(part, options.images, linked / name)
    more = (f"data.root={within(root.resolve())}", *([f"train.max_steps={options.steps}"] if options.steps else []))
    network = name == "network"
    return [
        Training(
            f"{name}/{named(label)}-{turn}",
            f"{name}, {label}",
            OwnCluster(options.link, options.hosts) if network else None,
            Path(part.config),
            (*overrides, *(["compressor.waiting=true"] if part.waiting and IWP in overrides else []), *more),
        )
        for turn in range(options.turns if network else 1)
        for label, overrides in part.variants.items()
        if options.methods is None or label in options.methods
    ]


def _link(part: ImportanceRuns, source: Path, target: Path) -> Path:
    """Link the images that EPOCH steps take."""
    config = loader.load(ROOT / part.config, [])
    images.link(source, target, EPOCH * config.data.batch_size * config.engine.workers)
    return target
