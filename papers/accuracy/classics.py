"""Every compressor at a density: labels and overrides, the most telling ones first."""

from collections.abc import Sequence

from papers.accuracy.rows import DENSE
from papers.accuracy.task import Composition, Methods, Task
from papers.gs_sgd.variants import DAMAGING_K, LITERAL, PUBLISHED
from papers.runner import ROOT
from papers.significance import LEAST_RUNS
from wirebench import compressors
from wirebench.compose.resolve import compressor_of
from wirebench.compressors.sketch.base import Sketched
from wirebench.config import loader
from wirebench.errors import UserError

WARMUP = PUBLISHED.tables["warmup"]["densities"]
SHARES = ("compressor.density=", "compressor.k=")
ORACLE = "compressor.name=papers.accuracy.perfect_sketch"

SETTINGS: dict[str, tuple[str, ...]] = {
    DENSE: ("compressor.name=none",),
    "gs_sgd literal": ("compressor.name=gs_sgd", *LITERAL),
    f"gs_sgd literal k={DAMAGING_K}": ("compressor.name=gs_sgd", *LITERAL, f"compressor.k={DAMAGING_K}"),
    "oracle top-k of the sum": (ORACLE, *LITERAL, "compressor.fill=estimate"),
    "oracle HEAVYMIX": (ORACLE, *LITERAL),
    # Stich et al. have no momentum; with one, the residuals' updates, 100 steps late, add up and diverge.
    "randomk": ("compressor.name=randomk", "optimizer.momentum=0"),
    "threshold": ("compressor.name=threshold", "compressor.threshold=0.003"),
}
"""Methods that are not simply a compressor's name at the density."""

FIRST = (
    DENSE, "topk", "gs_sgd", "gs_sgd literal", "sketched_sgd", "gtopk", "dgc", "powersgd", "iwp",
    "oracle top-k of the sum", "oracle HEAVYMIX", "iblt",
)  # fmt: skip


VGG16 = (DENSE, "gs_sgd", "gs_sgd literal", "gtopk", "sketched_sgd")
QUICK = (DENSE, "topk", "gs_sgd", "gs_sgd literal")
"""Methods of a study of a few minutes."""

CONTRASTS = (
    "gs_sgd p1=0 agree=majority", "gs_sgd p1=1", "gs_sgd rows=5 agree=majority", "gs_sgd columns_per_entry=10",
    "gs_sgd reseed=false", "gs_sgd momentum=0 optimizer.momentum=0.9",
    "powersgd rank=1", "iwp masking=true", "signsgd dense_below=0", "terngrad dense_below=0", "qsgd bits=2",
    "clt_k density=0.034", "gtopk density=0.034", "oktopk density=0.034", "randomk optimizer.momentum=0.9",
    "fetch_sgd columns_per_entry=19", "fetch_sgd columns_per_entry=20",
)  # fmt: skip
"""Rows that show where another row's accuracy comes from: one thing is changed, or what goes with it as well. They have
as many seeds as a test needs."""


def of_density(usual: Sequence[str] = ()) -> Methods:
    """The methods of a task: these, or all with their contrasts.

    A name is a label of the task's, which options may follow: `powersgd rank=1`, `randomk optimizer.momentum=0.9`.
    """

    def methods(task: Task, names: Sequence[str] | None, density: float) -> list[Composition]:
        known = labels(task)
        for name in names or ():
            if _split(name)[0] not in known:
                raise UserError(f"--methods: no {name!r}; there is: {', '.join(known)}")
        return [_method(name, task, density) for name in dict.fromkeys(names or usual or [*known, *CONTRASTS])]

    return methods


def labels(task: Task) -> list[str]:
    """All methods of a task, in the order in which they run."""
    # What returns updates, in place of the optimizer, learns at rates of its own: modern.py has it.
    averages = [name for name in compressors.available() if not compressors.class_of(name).makes_update]
    rest = [name for name in averages if name != "none"]
    every = dict.fromkeys([*FIRST, *SETTINGS, *rest])
    return [name for name in every if f"k={DAMAGING_K}" not in name or not _is_dense(name, task)]


def _is_dense(label: str, task: Task) -> bool:
    """Whether a sketch's row would send the whole model: dense training by another name."""
    method = compressor_of(loader.load(ROOT / task.config, SETTINGS[label]))
    return isinstance(method, Sketched) and method.is_dense(task.parameters, task.parameters)


def _split(name: str) -> tuple[str, list[str]]:
    """A method's label and the overrides that follow it; an option without a section is the compressor's."""
    if name in SETTINGS:
        return name, []
    words = name.split(" ")
    first = next((place for place, word in enumerate(words) if "=" in word), len(words))
    more = [word if "." in word.partition("=")[0] else f"compressor.{word}" for word in words[first:]]
    return " ".join(words[:first]), more


def _method(label: str, task: Task, density: float) -> Composition:
    method, more = _split(label)
    overrides = (*SETTINGS.get(method, (f"compressor.name={method}",)), *more)
    name, seeds = overrides[0].partition("=")[2], LEAST_RUNS if label in CONTRASTS else None
    if "density" not in compressors.PLUGINS.options(name):
        return Composition(label, overrides, None, seeds)
    own = {word.partition("=")[0]: float(word.partition("=")[2]) for word in overrides if word.startswith(SHARES)}
    share = own.get("compressor.density", own.get("compressor.k", density * task.parameters) / task.parameters)
    # Each epoch of a warm-up is sparser than the one before, and all are denser than the rest of the run.
    warmup = f"compressor.warmup={[each for each in WARMUP if each > share]}"
    if own:
        return Composition(label, (*overrides, warmup), None, seeds)
    return Composition(label, (*overrides, f"compressor.density={density:g}", warmup), density, seeds)
