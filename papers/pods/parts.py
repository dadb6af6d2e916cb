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
TIMES = {"5x": 5, "20x": 20}
"""Parts by how many times as long as a step computes its dense exchange is to take."""
LINKS = {"5x": "30mbit", "20x": "7.5mbit"}
"""Rates between pods: both hosts of a pod share them. 7.4 MB of gradients leave a pod in a dense step."""
EVERY = 30
DENSE, ALONE = "dense", "no exchange"
TOOL = ("wirebench", "bench", "pods")

_SUM = ("compressor.name=quantised_sum",)
_OUTER = ("scheduler.name=outer", f"scheduler.every={EVERY}")
METHODS: dict[str, tuple[str, ...]] = {
    DENSE: ("scheduler.name=builtin",),
    "dense, compress_replicas": ("compressor.name=none",),
    "fp16": ("compressor.name=fp16",),
    "bf16": ("compressor.name=bf16",),
    "int8": (*_SUM, "compressor.form=int8"),
    "int4": (*_SUM, "compressor.form=int4"),
    "topk": ("compressor.name=topk", "compressor.density=0.01"),
    # Beside AdamW, which has the momentum, it is top-k with clipping.
    "dgc momentum=0": ("compressor.name=dgc", "compressor.density=0.01", "compressor.momentum=0"),
    "powersgd": ("compressor.name=powersgd",),
    "demo": ("compressor.name=demo", *PLAIN_SGD, "optimizer.lr=1e-3", "optimizer.weight_decay=0.2"),
}
"""Methods that exchange in every step."""
LOCAL: dict[str, tuple[str, ...]] = {
    "diloco": _OUTER,
    "sparseloco": SPARSE,
    "sparseloco k=512": (*SPARSE, "compressor.k=512"),
}
"""Local steps. 64 of 4,096 entries a round are little in seven rounds, so that there is a row with 512."""

_FEW = ("train.warmup_steps=2", "train.max_steps=7")
_ROUNDS = (f"train.warmup_steps={EVERY}", f"train.max_steps={2 * EVERY}")
_TIMED: Mapping[str, tuple[str, ...]] = {
    **{label: (*words, *_FEW) for label, words in METHODS.items()},
    **{label: (*words, *_ROUNDS) for label, words in LOCAL.items()},
    # Pods that train alone, for longer than the run: what a step takes without any exchange between them.
    ALONE: ("scheduler.name=outer", "scheduler.every=1000", "train.warmup_steps=5", "train.max_steps=30"),
}


def _part(name: str, link: str, rows: Mapping[str, tuple[str, ...]], seeds: bool = False) -> Trained:
    place = OwnCluster(f"{WITHIN};{link}", layout=LAYOUT)
    return Trained(
        "", {label: (CONFIG, words) for label, words in rows.items()}, ("train.warmup_steps=30",) if seeds else (),
        repeats=3, seeds=seeds, here=place, folder=f"pods/{name}", between="-", may_diverge=seeds,
        tool=TOOL if seeds else (*TOOL, "--untested"),
    )  # fmt: skip


PARTS = {
    **{name: _part(name, LINKS[name], _TIMED) for name in TIMES},
    "loss": _part("loss", WITHIN, {**METHODS, **LOCAL}, seeds=True),
}
"""The losses do not depend on links."""
