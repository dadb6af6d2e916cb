"""The methods on two networks: which runs on emulated hosts are compared with the planner's order.

Four workers share the machine's cores, so everything is slowed down alike, links and trace: a network of 100 Gbit/s is
links of 1 Gbit/s, a hundred times slower than life. What workers compute themselves (compressing, sums, updates) is not
slowed down. It counts as the work of a device a hundred times as fast as their share of this machine's cores.

1 Gbit/s    links of 200 Mbit/s, five times slower than life, batches of 32: a pass takes 0.34 s, a dense exchange 2.8 s
100 Gbit/s  links of 1 Gbit/s, a hundred times slower, batches of 4: a pass takes 0.86 s, a dense exchange 0.6 s
"""

from collections.abc import Sequence
from typing import NamedTuple

from papers.accuracy.modern import DENSE, SETTINGS
from papers.today.emulated.speed import CONFIG, Setting, latest
from papers.trainings import Cluster, Training
from wirebench.errors import UserError
from wirebench.record.rules import TURNS

HOSTS = 4
WARMUP, COUNTED = 3, 6


class Network(NamedTuple):
    """The rate that links have in life, in Gbit/s, and how it is emulated."""

    gbit: float
    setting: Setting


NETWORKS = {
    "order_1gbit": Network(1.0, Setting("200mbit", 5, 32)),
    "order_100gbit": Network(100.0, Setting("1gbit", 100, 4)),
}
"""Networks by the part's name."""
METHODS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys((DENSE, "bf16", "topk", "dgc", "powersgd", "quantised_sum", "demo", "dion", "lion_sign"), ()),
    "gs_sgd": ("collective.name=tree",),
    # From its second step on every step is a sum of one bit, so that counted steps are alike.
    "zero_one_adam": (
        "compressor.kappa=1", "compressor.freeze_step=2", "compressor.double_every=1000", "compressor.longest=1"
    ),
    **dict.fromkeys(("diloco", "sparseloco", "streaming_diloco"), ()),
}  # fmt: skip
"""What differs from how the study trains its ResNet, by label. `local_sgd` sends what `diloco` sends, 1-bit Adam what
0/1 Adam sends here."""


def compressor_of(label: str) -> str:
    """Name of the method's compressor."""
    return next(word.partition("=")[2] for word in SETTINGS["resnet"][label] if word.startswith("compressor.name="))


def words(label: str, network: Network) -> tuple[str, ...]:
    """Overrides of a method's run: on a ring unless its paper names another collective, in whole rounds."""
    own = (*SETTINGS["resnet"][label], *METHODS[label])
    every = next((int(word.partition("=")[2]) for word in reversed(own) if word.startswith("scheduler.every=")), None)
    before, counted = (WARMUP, COUNTED) if every is None else (every, every)
    steps = (f"train.warmup_steps={before}", f"train.max_steps={before + counted}")
    return latest(("collective.name=ring", *own, *network.setting.words, *steps))


def trainings(
    part: str, names: Sequence[str] | None, turns: Sequence[int] | None, more: Sequence[str]
) -> list[Training]:
    """The runs of a network in the order of their turns; UserError for a name that there is not.

    turns  numbers of the turns to be made; None: all that a claim about times needs
    more   further overrides of all runs
    """
    for name in names or ():
        if name not in METHODS:
            raise UserError(f"--methods: no {name!r}; there is: {', '.join(METHODS)}")
    network = NETWORKS[part]
    return [
        Training(
            f"{label}-{turn}", label, Cluster(network.setting.link, HOSTS), CONFIG,
            latest((*words(label, network), *more)), may_diverge=False,
        )
        for turn in (range(TURNS) if turns is None else turns)
        for label in dict.fromkeys(names or METHODS)
    ]  # fmt: skip
