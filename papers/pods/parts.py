"""What is trained in pods: the methods between them, on links of two rates, and on fast ones to their end."""

from collections.abc import Mapping

from papers.accuracy.modern import SPARSE
from papers.launched import Trained
from papers.trainings import OwnCluster
from wirebench.compose.resolve import PLAIN_SGD

CONFIG = "configs/tables/pods_gpt.toml"
LAYOUT = "(1+1)+(1+1)"
WITHIN = "10gbit"
SHARDS = 2
TIMES = {"20x": 20, "5x": 5}
"""Parts by how many times as long as a step computes its dense exchange is to take."""
LINKS = {"20x": "11mbit", "5x": "44mbit"}
"""Rates between pods: both hosts of a pod share them. 7.4 MB of gradients leave a pod in a dense step."""
EVERY = 30
DENSE, ALONE = "dense", "no exchange"
TOOL = ("wirebench", "bench", "pods")

_SUM = ("compressor.name=quantised_sum",)
_OUTER = ("scheduler.name=outer", f"scheduler.every={EVERY}")
METHODS: dict[str, tuple[str, ...]] = {
    DENSE: ("scheduler.name=builtin",),
    "dense, compress_replicas": ("compressor.name=none",),
    "bf16": ("compressor.name=bf16",),
    "int8": (*_SUM, "compressor.form=int8"),
    "int4": (*_SUM, "compressor.form=int4"),
    "topk": ("compressor.name=topk", "compressor.density=0.01"),
    "powersgd": ("compressor.name=powersgd",),
    "demo": ("compressor.name=demo", *PLAIN_SGD, "optimizer.lr=1e-3", "optimizer.weight_decay=0.2"),
}
"""Methods that exchange in every step."""
LOCAL: dict[str, tuple[str, ...]] = {"diloco": _OUTER, "sparseloco": SPARSE}
"""Local steps."""
LOSSLESS = ("dense, compress_replicas", "bf16", "int8")
"""Left out where losses are compared: they differ from dense training by rounding."""
AT_5 = (DENSE, "int8", "int4", "topk", "diloco", "sparseloco", ALONE)
"""Rows of the part 5x, which shows how much less a method is worth there."""

_SLOW = (DENSE, "dense, compress_replicas", "bf16")
"""Their steps take seconds that a link counts out, so that three of them say as much as five of the others."""
_TIMED: Mapping[str, tuple[str, ...]] = {
    **{
        label: (*words, *(("train.warmup_steps=1", "train.max_steps=4") if label in _SLOW else
                          ("train.warmup_steps=2", "train.max_steps=7")))
        for label, words in METHODS.items()
    },
    # Thirty counted steps, one of which exchanges, wherever they begin.
    **{label: (*words, "train.warmup_steps=2", f"train.max_steps={2 + EVERY}") for label, words in LOCAL.items()},
    # Pods that train alone, for longer than the run: what a step takes without any exchange between them.
    ALONE: ("scheduler.name=outer", "scheduler.every=1000", "train.warmup_steps=3", "train.max_steps=18"),
}  # fmt: skip
_LOSSES: Mapping[str, tuple[str, ...]] = {
    **{label: words for label, words in METHODS.items() if label not in LOSSLESS},
    **LOCAL,
    # 64 of 4,096 entries a round are little in seven rounds.
    "sparseloco k=512": (*SPARSE, "compressor.k=512"),
}


def _part(name: str, link: str, rows: Mapping[str, tuple[str, ...]], seeds: bool = False) -> Trained:
    place = OwnCluster(f"{WITHIN};{link}", layout=LAYOUT)
    return Trained(
        "", {label: (CONFIG, words) for label, words in rows.items()}, ("train.warmup_steps=30",) if seeds else (),
        repeats=3 if seeds else 5, seeds=seeds, here=place,
        folder=f"pods/{name}", between="-", may_diverge=seeds,
        tool=TOOL if seeds else (*TOOL, "--untested"),
    )  # fmt: skip


PARTS = {
    "20x": _part("20x", LINKS["20x"], _TIMED),
    "5x": _part("5x", LINKS["5x"], {label: _TIMED[label] for label in AT_5}),
    "loss": _part("loss", WITHIN, _LOSSES, seeds=True),
}
"""The losses do not depend on links."""
