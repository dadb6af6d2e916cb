r"""Train under every schedule on an emulated cluster, taking turns: time per step beside its prediction.

wirebench study mg_wfbp run                                        ten settings, into results/schedules
wirebench study mg_wfbp run --config configs/tables/schedules_googlenet.toml --hosts 8 --link 1gbit \
    --schedulers wfbp dear:bucket_cap_mb=2 --out results/schedules/mine
wirebench study mg_wfbp report results/schedules/*/                afterwards: table.md and the figure of each

The machine should have nothing else to do. A run that fails is reported and the others go on; exit code 1 then.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from papers.launched import FEW, Timed, Trained
from papers.runner import RESULTS, Launch, Part, measure
from papers.trainings import Cluster, Training
from wirebench import schedulers
from wirebench.errors import UserError
from wirebench.record.rules import TURNS
from wirebench.telemetry.timeline import TRACE
from wirebench.utils.names import suggest

GOOGLENET, RESNET50, ALIKE = (
    Path(f"configs/tables/schedules_{name}.toml") for name in ("googlenet", "resnet50", "alike")
)
MERGED = ("wfbp", "sync_easgd", "mg_wfbp", "optimal")
MOST = (*MERGED, "fused", "dear", "dear:bucket_cap_mb=4", "native")


class Setting(NamedTuple):
    """A cluster and a model; of the schedules None means all but LEFT_OUT."""

    config: Path
    hosts: int
    link: str
    schedulers: Sequence[str] | None
    overrides: Sequence[str]


OF_LAYERS_ALIKE = (*MERGED, "dear", "dear:bucket_cap_mb=1")
SETTINGS = {
    # What the paper's nodes had: the nominal rate of their 10GbE, slowed down ten times; then what all-reduces on it
    # attained, adding on the CPU included (the authors' own fit, 3.6 Gbit/s).
    "googlenet_8x10gbit": Setting(GOOGLENET, 8, "1gbit", MOST, ()),
    "googlenet_8x3.6gbit": Setting(GOOGLENET, 8, "360mbit", MERGED, ()),
    # Fig. 6 and 7 have 2 and 4 nodes, and ResNet-50, too.
    **{f"googlenet_{nodes}x10gbit": Setting(GOOGLENET, nodes, "1gbit", MERGED, ()) for nodes in (2, 4)},
    **{f"resnet50_{nodes}x10gbit": Setting(RESNET50, nodes, "1gbit", MERGED, ()) for nodes in (2, 4, 8)},
    # A slower network at full speed.
    "googlenet_4x1gbit": Setting(GOOGLENET, 4, "1gbit", MOST, ("network.dilation=1",)),
    # Layers made up.
    **{f"alike_8x{link}": Setting(ALIKE, 8, link, OF_LAYERS_ALIKE, ()) for link in ("500mbit", "1gbit")},
}
PAPERS = ("wfbp", "sync_easgd", "mg_wfbp")
PAPERS_CONFIG = "configs/papers/imagenet_{}_{}.toml"
_NODES = ("1", "1+1", "1+1+1+1", "1+1+1+1+1+1+1+1")
_SCHEDULES = {
    **{name: (f"scheduler.name={name}",) for name in PAPERS},
    # The authors' TensorFlow had parameter servers: every gradient goes to one place and comes back.
    "wfbp on star": ("scheduler.name=wfbp", "collective.name=star"),
}
ON_CLUSTER = {
    "all_reduce": Timed("Fig. 5 (b)", ("ring",), ("60kf", "120kf", "1200kf", "3000kf"), _NODES[1:]),
    "replay": Trained(
        "Fig. 6 and 8, by the authors' own layer times",
        {label: (str(GOOGLENET), words) for label, words in _SCHEDULES.items()}, ("network.dilation=1",), layouts=_NODES
    ),
    "computing": Trained(
        "Fig. 6, 7 and 8, by networks that compute",
        {
            f"{model} {label}": (PAPERS_CONFIG.format(model, label.partition(" ")[0]), words[1:])
            for model in ("googlenet", "resnet50")
            for label, words in _SCHEDULES.items()
        },
        (*FEW, "data.name=synthetic", "data.image_size=224", "data.num_classes=1000"), layouts=_NODES,
    ),
    "convergence": Trained(
        "section V-B: accuracy after 13 epochs",
        {f"resnet50 {name}": (PAPERS_CONFIG.format("resnet50", name), ()) for name in ("mg_wfbp", "sync_easgd")},
        ("train.epochs=13",), repeats=3, seeds=True, layouts=_NODES[-1:], needs="images",
    ),
}  # fmt: skip
LEFT_OUT = ("easgd",)
"""Not another order of the same messages, but another optimiser."""
HOSTS, LINK = 8, "1gbit"


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for what is trained, under which schedules, on what cluster."""
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="what is trained, in a setting of one's own")
    add("--schedulers", nargs="+", metavar="NAME[:OPTION=VALUE]", help="all but easgd")
    add("--hosts", type=int, help=f"hosts of one worker each ({HOSTS})")
    add("--link", help=f"rate of every host's link ({LINK})")
    add("--turns", type=int, default=TURNS, help="runs of each schedule (%(default)s)")
    add("--set", nargs="+", metavar="KEY=VALUE", help="further settings, of all runs")
    add("--out", type=Path, metavar="FOLDER", help="where the results go (results/schedules)")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """Every schedule once, then every one again."""
    if options.turns < 1:
        raise UserError(f"--turns: must be positive, got {options.turns}")
    chosen = {out.resolve(): plan(setting, options.turns) for out, setting in settings(options).items()}
    return measure(chosen, launch, options.again)


def series(quick: bool) -> list[Part]:
    """Ten settings; quick: one turn of the paper's three schedules in the paper's own."""
    if not quick:
        return [Part(340, [])]
    name = next(iter(SETTINGS))
    own = SETTINGS[name]
    place = ["--hosts", str(own.hosts), "--link", own.link, "--out", str(RESULTS / "schedules" / name)]
    return [Part(3, ["--config", str(own.config), *place, "--turns", "1", "--schedulers", *PAPERS])]


def settings(options: argparse.Namespace) -> dict[Path, Setting]:
    """By the folder of the results: the one that is asked for, or all; UserError for a flag that needs one."""
    if options.config is None:
        for name in ("hosts", "link", "schedulers", "set"):
            if getattr(options, name) is not None:
                raise UserError(f"--{name}: needs --config")
        return {(options.out or RESULTS / "schedules") / name: setting for name, setting in SETTINGS.items()}
    hosts = HOSTS if options.hosts is None else options.hosts
    own = Setting(options.config, hosts, options.link or LINK, options.schedulers, options.set or ())
    return {options.out or RESULTS / "schedules/runs": own}


def plan(setting: Setting, turns: int) -> list[Training]:
    """The runs of a setting, in the order of their turns."""
    known = [name for name in schedulers.available() if name not in LEFT_OUT]
    runs = []
    for turn in range(turns):
        for word in dict.fromkeys(setting.schedulers or known):
            name, *given = word.split(":")
            if name not in schedulers.available():
                raise UserError(f"--schedulers: no {name!r}; {suggest(name, known)}")
            own = (f"scheduler.name={name}", *(("collective.name=native",) if name == "native" else ()))
            overrides = (*setting.overrides, *own, *(f"scheduler.{option}" for option in given))
            label = " ".join((name, *given))
            folder = f"{label.replace(' ', '-')}-{turn}"
            cluster = Cluster(setting.link, setting.hosts)
            keeps = (TRACE,) if turn == 0 else ()  # which the report draws
            runs.append(Training(folder, label, cluster, setting.config, overrides, keeps))
    return runs
