"""Train with every compressor on an emulated cluster, taking turns: time per step, phases, and bytes on the wire.

wirebench study methods run                                    all methods on VGG-16 and ResNet-20, 4 hosts, 1 Gbit/s
wirebench study methods run --config configs/tables/methods_vgg16.toml --methods dense gs_sgd --turns 3
wirebench study methods run --config configs/tables/methods_vgg16.toml --link 100mbit 1gbit --methods dense topk
wirebench study methods report results/methods/vgg16           afterwards: table.md and the figure

The machine should have nothing else to do. A method that fails is reported and the others go on; exit code 1 then.
Its earlier run, if there is one, stays. A method that diverges has not failed, and its row reports it.
"""

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from papers.gs_sgd.variants import variants
from papers.runner import RESULTS, ROOT, Launch, Part, measure
from papers.trainings import Cluster, Training
from wirebench import compressors
from wirebench.compose.resolve import optimizer_for
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.record.rules import TURNS

CONFIGS = [Path(f"configs/tables/methods_{model}.toml") for model in ("vgg16", "resnet20")]
LINK, LINKS = "1gbit", ("100mbit", "300mbit", "1gbit", "3gbit")
BY_LINK = ("dense", "bf16", "quantised_sum", "topk", "powersgd")
"""Methods that are measured on all of LINKS."""
FUSED = "scheduler.name=fused"
BASELINES: dict[str, list[str]] = {
    "dense": ["compressor.name=none", FUSED],
    "dense, one message": ["compressor.name=none"],
    "DDP": ["compressor.name=none", "scheduler.name=native"],
}
"""What every method is compared with, by label."""

QUICK, QUICK_MORE = ("topk", "gtopk", "powersgd", "int8"), ("fp16", "dgc", "gs_sgd", "sketched_sgd", "signsgd")
SETTINGS: dict[str, list[str]] = {
    "fp16": [FUSED],
    "bf16": [FUSED],
    # A replay sends noise of deviation 1e-4. What is held back walks at random, and reaches ten times that in some 100
    # steps, so that about 1 % goes in each.
    "threshold": ["compressor.threshold=1e-3"],
}
"""What a compressor is run with; else `density` where it has that option, in one message per step."""


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for what is trained, with which methods, and where."""
    add = parser.add_argument
    add("--config", type=Path, nargs="+", default=CONFIGS, metavar="FILE", help="what is trained (VGG-16, ResNet-20)")
    add("--methods", nargs="+", metavar="NAME", help="compressors, or 'dense', 'DDP', ... (all)")
    add("--density", type=float, default=0.01, help="of the sparse methods (%(default)s)")
    add("--hosts", type=int, default=4, help="hosts of one worker each (%(default)s)")
    add(
        "--link", nargs="+", default=[LINK], metavar="RATE", help=f"rate of every host's link ({LINK}); of several: all"
    )
    add("--turns", type=int, default=TURNS, help="runs of each method (%(default)s)")
    add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings, of all methods")
    add("--out", type=Path, metavar="FOLDER", help="where the results go (results/methods, by config and link)")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """Config by config: every method once, then every method again."""
    chosen = plan(options.methods, options.density)
    names = {path: _name(loader.load(ROOT / path, options.set).name) for path in options.config}
    if options.turns < 1:
        raise UserError(f"--turns: must be positive, got {options.turns}")
    if not 0 < options.density <= 1:
        raise UserError(f"--density: lies in (0, 1], got {options.density:g}")
    if options.out and len(names) * len(options.link) > 1:
        raise UserError("--out: needs one --config and one --link")
    runs: dict[Path, list[Training]] = {}
    for path, name in names.items():
        for link in dict.fromkeys(options.link):
            of_link = f"{name}-{link}" if len(options.link) > 1 else name
            out = (options.out or RESULTS / "methods" / of_link).resolve()
            runs.setdefault(out, []).extend(planned(options, path, chosen, link))
    return measure(runs, launch, options.again)


def series(quick: bool) -> list[Part]:
    """Both networks, and VGG-16 by link; quick: one turn of a few methods, of more of them on ResNet-20."""
    if not quick:
        by_link = ["--config", str(CONFIGS[0]), "--link", *LINKS, "--methods", *BY_LINK, "--set", "train.max_steps=16"]
        return [Part(120, []), Part(40, by_link)]
    resnet20, vgg16 = (
        ["--turns", "1", "--config", str(path), "--methods", *BASELINES, *QUICK] for path in reversed(CONFIGS)
    )
    return [Part(3, [*resnet20, *QUICK_MORE]), Part(3, vgg16)]


def plan(names: Sequence[str] | None, density: float) -> dict[str, list[str]]:
    """Overrides by label, in the order of their turns: of baselines, compressors and variants, all or those named."""
    known = dict(BASELINES)
    for name in compressors.available():
        if name != "none":
            options = compressors.PLUGINS.options(name)
            sparse = [f"compressor.density={density:g}"] if "density" in options else []
            known[name] = [f"compressor.name={name}", *SETTINGS.get(name, sparse), *optimizer_for(name)]
    known |= variants(density)
    for name in names or ():
        if name not in known:
            raise UserError(f"--methods: no {name!r}; there is: {', '.join(known)}")
    return {name: known[name] for name in (dict.fromkeys(names) if names else known)}


def planned(options: argparse.Namespace, trained: Path, chosen: dict[str, list[str]], link: str) -> list[Training]:
    """All runs of a config on links of one rate, in the order of their turns."""
    cluster = Cluster(link, options.hosts)
    return [
        Training(
            f"{label.replace(', ', '-').replace(' ', '_')}-{turn}",
            label,
            cluster,
            trained,
            (*overrides, *options.set),
        )
        for turn in range(options.turns)
        for label, overrides in chosen.items()
    ]


def _name(config_name: str) -> str:
    """Name of the folder of a config's results: methods-vgg16 has them in vgg16."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", config_name.removeprefix("methods-")).strip(".-") or "run"
