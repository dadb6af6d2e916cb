"""What takes turns on emulated hosts: every compressor, the gs-SGD paper's methods, schedules, and local steps."""

from collections.abc import Iterable, Mapping, Sequence

from papers.accuracy.modern import SPARSE, STREAMING
from papers.gs_sgd.variants import readings, variants
from papers.launched import Trained
from papers.trainings import Composition, OwnCluster
from wirebench import compressors
from wirebench.compose.resolve import optimizer_for
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
