"""What takes turns on emulated hosts: every compressor, the gs-SGD paper's methods, schedules, and local steps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from papers.accuracy.modern import SPARSE, STREAMING
from papers.gs_sgd.variants import readings, variants
from papers.launched import Trained
from papers.trainings import Composition, OwnCluster
from wirebench import compressors
from wirebench.compose.resolve import optimizer_for
from wirebench.planner.ddp_caps import caps_text
from wirebench.telemetry.timeline import TRACE

CONFIG = "configs/tables/{}.toml"
FOUR = OwnCluster("1gbit", 4)
DENSITY = "compressor.density=0.01"

FUSED = "scheduler.name=fused"
BASELINES: dict[str, tuple[str, ...]] = {
    "dense": ("compressor.name=none", FUSED),
    "dense, one message": ("compressor.name=none",),
    "DDP": ("compressor.name=none", "scheduler.name=native"),
}
"""What every method is compared with, by label."""
QUICK, QUICK_MORE = ("topk", "gtopk", "powersgd", "int8"), ("fp16", "dgc", "gs_sgd", "sketched_sgd", "signsgd")
SETTINGS: dict[str, tuple[str, ...]] = {
    "fp16": (FUSED,),
    "bf16": (FUSED,),
    # A replay sends noise of deviation 1e-4. What is held back walks at random, and reaches ten times that in some 100
    # steps, so that about 1 % goes in each.
    "threshold": ("compressor.threshold=1e-3",),
}
"""What a compressor is run with; else `density` where it has that option, in one message per step."""


def _compressors() -> dict[str, tuple[str, ...]]:
    """Overrides by label: of baselines, compressors and variants of gs-SGD's."""
    known = dict(BASELINES)
    for name in compressors.available():
        if name != "none":
            sparse = (DENSITY,) if "density" in compressors.PLUGINS.options(name) else ()
            known[name] = (f"compressor.name={name}", *SETTINGS.get(name, sparse), *optimizer_for(name))
    return known | {label: tuple(words) for label, words in variants(0.01).items()}


def _rows(config: str, overrides: Mapping[str, Sequence[str]], labels: Iterable[str] = ()) -> dict[str, Composition]:
    """All rows of one config, or the ones with these labels."""
    return {label: (CONFIG.format(config), overrides[label]) for label in labels or overrides}


def _on(
    place: OwnCluster, folder: str, rows: Mapping[str, Composition], shared: tuple[str, ...] = (),
    keeps: tuple[str, ...] = (), between: str = "_", may_diverge: bool = True,
) -> Trained:  # fmt: skip
    """Rows that take turns on an emulated cluster, with their results in this folder of results/."""
    return Trained("", rows, shared, here=place, folder=folder, keeps=keeps, between=between, may_diverge=may_diverge)


_EVERY = _compressors()
_SLOW = ("dense", "topk", "gtopk", "gs_sgd literal", "sketched_sgd literal")
_BY_LINK = ("dense", "bf16", "quantised_sum", "topk", "powersgd")
LINKS = ("100mbit", "300mbit", "1gbit", "3gbit")
METHODS = {
    **{model: _on(FOUR, f"methods/{model}", _rows(f"methods_{model}", _EVERY)) for model in ("vgg16", "resnet20")},
    # In slow motion but for the compressors, which are ten times as fast beside the network.
    "vgg16_slow": _on(
        OwnCluster("100mbit", 4), "methods/vgg16_slow", _rows("methods_vgg16", _EVERY, _SLOW),
        ("network.dilation=10", "train.max_steps=11", "train.warmup_steps=3"),
    ),
    **{
        f"vgg16-{link}": _on(
            OwnCluster(link, 4),
            f"methods/vgg16-{link}",
            _rows("methods_vgg16", _EVERY, _BY_LINK),
            ("train.max_steps=16",),
        )
        for link in LINKS
    },
}  # fmt: skip

_PAPERS = {
    **{label: _EVERY[label] for label in ("gtopk", "gs_sgd", "sketched_sgd", *variants(0.01))},
    **{label: tuple(words) for label, words in readings().items()},
}
GS_SGD = {model: _on(FOUR, f"gs-sgd/{model}", _rows(f"methods_{model}", _PAPERS)) for model in ("vgg16", "resnet20")}
"""The methods as printed also at 0.4 % and 0.1 %: where the paper's warm-up ends, and what DGC and gTop-k have."""

MERGED = ("wfbp", "sync_easgd", "mg_wfbp", "optimal")
_MOST = (*MERGED, "fused", "dear", "dear bucket_cap_mb=4", "native")
_ALIKE = (*MERGED, "dear", "dear bucket_cap_mb=1")


def _scheduled(label: str) -> tuple[str, ...]:
    name, *options = label.split(" ")
    collective = ("collective.name=native",) if name == "native" else ()
    return (f"scheduler.name={name}", *collective, *(f"scheduler.{option}" for option in options))


SCHEDULES = {
    f"{config}_{nodes}x{rate}": _on(
        OwnCluster(link, nodes), f"schedules/{config}_{nodes}x{rate}",
        _rows(f"schedules_{config}", {label: _scheduled(label) for label in labels}), shared, (TRACE,), "-",
    )
    for config, nodes, rate, link, labels, shared in (
        # What the paper's nodes had: the nominal rate of their 10GbE, slowed down ten times; then what all-reduces on
        # it attained, adding on the CPU included (the authors' own fit, 3.6 Gbit/s).
        ("googlenet", 8, "10gbit", "1gbit", _MOST, ()),
        ("googlenet", 8, "3.6gbit", "360mbit", MERGED, ()),
        # Fig. 6 and 7 have 2 and 4 nodes, and ResNet-50, too.
        *(("googlenet", nodes, "10gbit", "1gbit", MERGED, ()) for nodes in (2, 4)),
        *(("resnet50", nodes, "10gbit", "1gbit", MERGED, ()) for nodes in (2, 4, 8)),
        # A slower network at full speed.
        ("googlenet", 4, "1gbit", "1gbit", _MOST, ("network.dilation=1",)),
        # Layers made up.
        *(("alike", 8, link, link, _ALIKE, ()) for link in ("500mbit", "1gbit")),
    )
}  # fmt: skip
"""By network, nodes, and the links' rate in life."""

HOSTS = 4
OWN, LISTED, ONE, OURS = "DDP", "DDP bucket_cap_mb_list", "DDP bucket_cap_mb", "optimal"


class BucketMerge(NamedTuple):
    """A merge that the planner found for plain DDP, and what it expected of it, over DDP with its own buckets.

    link, dilation  of the emulated hosts; trace, batch: what is replayed
    caps            MiB of each bucket; one: MiB of all buckets, for a PyTorch that takes one cap
    gain, one_gain  steps per second over DDP's own
    """

    link: str
    dilation: int
    trace: str
    batch: int
    caps: tuple[float, ...]
    one: float
    gain: float
    one_gain: float

    @property
    def predicted(self) -> Mapping[str, float]:
        """Steps per second over DDP's own, by label. Our schedule sends the messages that the caps make."""
        return {OWN: 1.0, LISTED: self.gain, ONE: self.one_gain, OURS: self.gain}


# The planner's answers are written down instead of asked for in every run: a run's command then names its caps, runs of
# later turns have the same ones, and the predictions are older than the runs. `wirebench advise` printed them, here of
# ResNet-110 (of ResNet-18: --trace resnet18_gtx1080ti --speed 0.1, without --gbit); a test asks it again.
#   wirebench advise --trace resnet110_gtx1080ti --speed 0.2 --gbit 0.4 --workers 4 --compressors none --all \
#       --topology configs/topologies/4x_1gbit_2cores.toml --schedulers wfbp fused single mg_wfbp optimal \
#       fused:bucket_cap_mb=1.65:first_bucket_mb=1.65
# The topology has what the machine's two cores need for messages: with bare links the planner would send each layer by
# itself. Exchange and computing take about equally long. ResNet-110 fits in DDP's second bucket, which DDP sends when
# the backward pass is over; of ResNet-18 that is a third of the gradient. A run takes 12 steps of 0.3 to 1 s, and
# about 7 s to start: five turns of both take 10 minutes.
MERGES = {
    "ddp_caps-resnet110": BucketMerge(
        "400mbit", 5, "resnet110_gtx1080ti", 128, (0.143592, 0.705566, 3.810546, 1.931945), 1.65, 1.25, 1.19
    ),
    "ddp_caps-resnet18": BucketMerge(
        "1gbit", 10, "resnet18_gtx1080ti", 32, (1.956939, 9.003906, 27.648437, 5.982666), 11.1, 1.05, 1.0
    ),
}


def _with_caps(name: str, merge: BucketMerge) -> Trained:
    """DDP with its own buckets, with the planner's, and with one cap; the same messages by our own exchange.

    All use the engine's all-reduce. Our schedule is the planner's, `optimal`.
    """
    ddp = BASELINES["DDP"]
    rows = {
        OWN: ddp,
        LISTED: (*ddp, f"scheduler.bucket_caps_mb={caps_text(merge.caps).replace(' ', '')}"),
        ONE: (*ddp, f"scheduler.bucket_cap_mb={merge.one:g}"),
        OURS: ("compressor.name=none", "scheduler.name=optimal"),
    }
    shared = (f"model.trace={merge.trace}", f"data.batch_size={merge.batch}", f"network.dilation={merge.dilation}")
    place = OwnCluster(merge.link, HOSTS)
    return _on(place, name.replace("-", "/"), _rows("ddp_caps", rows), shared, may_diverge=False)


DDP_CAPS = {name: _with_caps(name, merge) for name, merge in MERGES.items()}

DENSE, SPARSELOCO, STREAMED, WAITING = "dense", "sparseloco", "streaming_diloco", "streaming_diloco delay=0"
PAIRS = ((SPARSELOCO, DENSE), (STREAMED, WAITING))
"""What is compared of local steps, in one setting each."""
_STREAMED = ("compressor.name=none", *STREAMING, "train.warmup_steps=30", "train.max_steps=60")


def _local_steps(link: str, dilation: int, batch: int, rows: Mapping[str, tuple[str, ...]]) -> Trained:
    """Eight workers share the machine's cores, so everything is slowed down, links and trace alike: what the workers
    themselves compute (gradients, updates, top-k) is then small beside what the trace and the links take. Counted
    steps are whole rounds, and follow one round or, of dense training, one step. The timeline is drawn until a fragment
    was sent and applied, 15 steps after the warm-up.
    """
    shared = (f"network.dilation={dilation}", f"data.batch_size={batch}", "output.trace_steps=15")
    place = OwnCluster(link, 8)
    return _on(place, "today/speed", _rows("today_speed", rows), shared, (TRACE,), "-", may_diverge=False)


LOCAL_STEPS = {
    # Links of 100 Mbit/s. A dense step takes 27 s, a run 2 minutes. At the start weights need longer than the minute
    # after which an engine usually gives up.
    "sparseloco": _local_steps("25mbit", 4, 32, {
        DENSE: ("compressor.name=none", "train.warmup_steps=1", "train.max_steps=4"),
        SPARSELOCO: (*SPARSE, "train.warmup_steps=30", "train.max_steps=90"),
    }),
    # Links of 1 Gbit/s: five local steps take 3.4 s, a fragment's all-reduce up to 1.5 s. Without a delay a worker
    # waits for each: that is what can be hidden.
    "streaming": _local_steps("200mbit", 5, 64, {STREAMED: _STREAMED, WAITING: (*_STREAMED, "scheduler.delay=0")}),
}  # fmt: skip
