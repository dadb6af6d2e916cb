"""GPTs of three sizes at three numbers of tokens a parameter: what a gap of a small run says about a large one.

A token is a byte. Every method has the rate that its own search found, on the validation split with 20 tokens a
parameter. Each has the same five rates, as shares of a first guess, and one more beyond the best while that is the
lowest or the highest. So the best rate of every method has a neighbour of half and of twice the rate. A method whose
search has not come that far has no rate, and is not trained. The largest size has the rates of the middle one.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from papers import estimate, lossless, trust
from papers.accuracy import cells, verdicts
from papers.accuracy.modern import DENSE, OTHER_DENSE, OWN, PLAIN_OUTER, SETTINGS, SHORTER, adams, other_dense
from papers.accuracy.rows import (
    MethodRuns,
    against_dense,
    by_loss,
    dense_of,
    losses,
    multiplicity,
    read,
    runs_of,
    tokens,
)
from papers.accuracy.task import Composition, Task, listed, methods_in
from papers.findings import claims_table, with_unrun
from papers.page import Page
from papers.rows import provenance_of, spread
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.style import Axis, Figure, around, grid
from wirebench.record.notes import NotedRun
from wirebench.utils.markdown import table

CONFIG, SERIES = "configs/tables/sizes_gpt.toml", "sizes"
WORKERS, LENGTH = 4, 128
HEAD = (
    "method",
    "seeds",
    "tokens a parameter",
    "test loss",
    "gap",
    "against dense (Welch)",
    "dense tokens for it",
    "fewer bytes",
    "rate",
)
ROUND = 32
"""Local steps of a round: a run has whole rounds, so that its last step exchanges."""


class ModelSize(NamedTuple):
    """A model: blocks, width, heads; a worker's sequences of a step; and the size that has its rates."""

    parameters: int
    depth: int
    width: int
    heads: int
    batch: int
    rates: str

    @property
    def per_step(self) -> int:
        """Tokens of a step of all workers."""
        return WORKERS * self.batch * LENGTH


SIZES = {
    "0.1m": ModelSize(98_336, 2, 56, 2, 4, "0.1m"),
    "0.3m": ModelSize(316_184, 3, 88, 4, 4, "0.3m"),
    "1m": ModelSize(1_058_400, 4, 144, 4, 8, "0.3m"),
}
"""With 20 tokens a parameter they make 960, 3,072 and 5,152 steps. In trials small
models were better in steps of fewer tokens."""
RATIOS = (2, 20, 60)
"""Tokens a parameter; 20 are those at which a dense model of a given cost is best (Hoffmann et al., "Training
Compute-Optimal Large Language Models", 2022)."""
AT = 20
FACTORS = (1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Rates that are tried of every method, as shares of modern.py's: those were found by a coarse search at 1.9 million
parameters."""
MOST = 9
"""Rates of a search: a method that diverges at every rate would be tried for ever."""
SEARCH = "_search"
DECAY = 2e-4
"""Rate x weight decay: a step shrinks the weights alike whatever the rate."""

LOCAL = ("diloco", "muloco momentum=0.5", "sparseloco")
_INT8 = ("compressor.form=int8", "compressor.feedback=false")
METHODS: Mapping[str, tuple[str, ...]] = {
    **{
        label: SETTINGS["gpt"][label]
        for label in (DENSE, "muon", "bf16", "quantised_sum", "topk", "powersgd", "demo", "dion", "zero_one_adam")
    },
    "dion2": ("compressor.name=none", "optimizer.name=dion2", "optimizer.momentum=0.95"),
    "quantised_sum feedback=false": (*SETTINGS["gpt"]["quantised_sum"], "compressor.feedback=false"),
    "quantised_sum int8": (*SETTINGS["gpt"]["quantised_sum"], *_INT8),
    **{label: (*SETTINGS["gpt"][label], f"scheduler.every={ROUND}") for label in LOCAL},
}
"""By label, without the rate that the search finds. quantised_sum has 4 bits and feedback, which is LoCo's rule (arXiv
2407.04480)."""

_NEVER = "compressor.freeze_step=1000000"
CAUSES: Mapping[str, tuple[str, ...]] = {
    "topk density=0.1": ("topk", "compressor.density=0.1"),
    "topk of steps": ("topk", *PLAIN_OUTER, "scheduler.every=1"),
    "powersgd rank=8": ("powersgd", "compressor.rank=8"),
    "demo k=128": ("demo", "compressor.k=128"),
    "dion rank_fraction=1": ("dion", "compressor.rank_fraction=1"),
    "dion2 fraction=1": ("dion2", "optimizer.fraction=1"),
    "zero_one_adam longest=1": ("zero_one_adam", "compressor.longest=1"),
    "zero_one_adam beta2=0.95": ("zero_one_adam", "compressor.beta2=0.95"),
    "zero_one_adam no freeze": ("zero_one_adam", _NEVER),
    "zero_one_adam all dense": ("zero_one_adam", _NEVER, "compressor.kappa=1000000"),
    "diloco every=8": ("diloco", "scheduler.every=8"),
    "diloco outer momentum=0.5": ("diloco", "scheduler.momentum=0.5"),
    "diloco outer rate=0.4": ("diloco", "scheduler.rate=0.4"),
    "diloco outer rate=1": ("diloco", "scheduler.rate=1"),
    "diloco streaming": ("diloco", "scheduler.fragments=3", "scheduler.delay=5", "scheduler.keep=0.5"),
    "diloco plain average": ("diloco", *PLAIN_OUTER, f"scheduler.every={ROUND}"),
    "diloco plain average every=8": ("diloco", *PLAIN_OUTER, "scheduler.every=8"),
    "diloco plain average every=1": ("diloco", *PLAIN_OUTER, "scheduler.every=1"),
    "muloco momentum=0.5 every=8": ("muloco momentum=0.5", "scheduler.every=8"),
    "sparseloco every=8": ("sparseloco", "scheduler.every=8"),
    "sparseloco k=512": ("sparseloco", "compressor.k=512"),
    "sparseloco k=4096": ("sparseloco", "compressor.k=4096"),
    "sparseloco beta=1": ("sparseloco", "compressor.beta=1"),
}
"""By label a method and the one thing that is changed of it, at the method's rate: what its loss comes from. With
a k of 4,096 SparseLoCo leaves nothing out, so its loss is of rounds and of two bits; with a beta of 1 its feedback
forgets nothing. 0/1 Adam without a freeze goes on updating its variance, and sums in each step; with all steps dense
it is Adam."""
OWN_RATE = " at its own rate"
SEARCHED = (
    "topk of steps", "dion rank_fraction=1", "zero_one_adam all dense", "diloco every=8", "diloco plain average",
    "diloco plain average every=8", "diloco plain average every=1", "sparseloco every=8",
)  # fmt: skip
"""Changes with a search of their own as well, at 0.1 million parameters: after them another rate may be the best."""


def steps(size: ModelSize, ratio: float) -> int:
    """Steps of a run with `ratio` tokens a parameter, in whole rounds."""
    return max(round(ratio * size.parameters / size.per_step / ROUND), 1) * ROUND


def at_rate(words: Sequence[str], rate: float) -> tuple[str, ...]:
    """A method's words with this learning rate, and the weight decay that goes with it."""
    return (*words, f"optimizer.lr={rate:.3g}", f"optimizer.weight_decay={DECAY / rate:.4g}")


def _task(name: str, size: ModelSize, ratio: float, seeds: int, methods: Any, more: tuple[str, ...] = ()) -> Task:
    count = steps(size, ratio)
    # Narrow matrices multiply as much as those of GPT-2, which is 768 wide: in trials AdamW lost by its 0.02.
    std = f"model.std={0.02 * math.sqrt(768 / size.width):.3g}"
    shape = (f"model.depth={size.depth}", f"model.width={size.width}", f"model.heads={size.heads}", std)
    # One more sequence, in which the cuts shift.
    length = (f"data.batch_size={size.batch}", f"data.train_bytes={count * size.per_step + LENGTH}")
    shared = (*shape, *length, *more)
    settings = {label: (*words, *adams(count).get(label, ())) for label, words in METHODS.items()}
    if ratio == AT:
        causes = {label: (*settings[method], *words) for label, (method, *words) in CAUSES.items()}
        settings |= (causes | other_dense(count, size.batch, size.per_step)) if seeds > 1 else {}
        if size == SIZES["0.1m"]:
            settings |= {f"{label}{OWN_RATE}": causes[label] for label in SEARCHED}
    return Task(
        name, SERIES, CONFIG, 1, seeds, size.parameters, methods, data=False, shared=shared, settings=settings, own=OWN
    )


_Known = tuple[Task, Mapping[str, MethodRuns]]
"""A task, and its methods by label."""


# --- The search


class Searched(NamedTuple):
    """What a search found of a method: the rate with the least loss, and the rates that were tried."""

    rate: float
    tried: tuple[float, ...]

    @property
    def beyond(self) -> float | None:
        """The rate to be tried next; None where the best one has a neighbour on both sides, or MOST were tried."""
        if not self._at_end or len(self.tried) >= MOST:
            return None
        factor = FACTORS[-1] / FACTORS[-2]
        return self.rate * factor if self.rate == max(self.tried) else self.rate / factor

    @property
    def settled(self) -> bool:
        """Whether the search is over: it had all its rates, and the best one is at no end."""
        return len(self.tried) >= len(FACTORS) and not self._at_end

    @property
    def _at_end(self) -> bool:
        return self.rate in (min(self.tried), max(self.tried))


def found(size: str) -> dict[str, Searched]:
    """By label what the search of this size found; nothing where none has run."""
    return {
        label: _searched(tried) for label, tried in _by_rate(read(RESULTS / SERIES / f"gpt_{size}{SEARCH}")).items()
    }


def _by_rate(runs: Iterable[NotedRun]) -> dict[str, dict[float, float]]:
    """By label the loss at each rate of a search's runs; infinite where one diverged."""
    by_label: dict[str, dict[float, float]] = {}
    for run in runs:
        label, _, rate = run.note["label"].rpartition(" lr=")
        loss = None if run.diverged else run.has("final", "loss")
        by_label.setdefault(label, {})[float(rate)] = math.inf if loss is None else loss
    return by_label


def _searched(tried: Mapping[float, float]) -> Searched:
    """Where all diverge the lowest rate counts as the best: the next one is lower."""
    return Searched(min(sorted(tried), key=tried.__getitem__), tuple(sorted(tried)))


def rates_of(size: str) -> dict[str, float]:
    """By label the rates that this size's runs have: those whose searches are over."""
    return {label: each.rate for label, each in found(SIZES[size].rates).items() if each.settled}


def at_rates(part: Task, names: Sequence[str] | None, size: str, label_of: Callable[[str], str]) -> list[Composition]:
    """The methods that have a rate, at it; UserError for a named one that has none. label_of: whose rate a label has"""
    rates, every = rates_of(size), listed(part, names)
    lacking = [each.label for each in every if label_of(each.label) not in rates]
    if names is not None and lacking:
        raise UserError(
            f"--methods: {', '.join(lacking)}: has no rate; first wirebench study accuracy run --task "
            f"gpt_{SIZES[size].rates}{SEARCH}"
        )
    return [
        Composition(each.label, at_rate(each.overrides, rates[label_of(each.label)]))
        for each in every
        if label_of(each.label) in rates
    ]


def without_rate(task: Task) -> list[str]:
    """The methods of a task that wait for their search."""
    there = {each.label for each in task.methods(task, None, 0.0)}
    return [label for label in task.settings if label not in there]


def _searching(size: str, part: Task, names: Sequence[str] | None, density: float = 0.0) -> list[Composition]:
    """Every method at each rate: the usual factors, those that were tried, and one beyond a best one at an end."""
    known, wanted = found(size), []
    for each in listed(part, names):
        usual = part.composed(each).optimizer.lr
        rates = {_rounded(factor * usual) for factor in FACTORS}
        if each.label in known:
            rates |= {*known[each.label].tried, *filter(None, [known[each.label].beyond])}
        for rate in sorted(map(_rounded, rates)):
            wanted.append(Composition(f"{each.label} lr={rate:g}", at_rate(each.overrides, rate)))
    return wanted


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


def _trained(size: str, part: Task, names: Sequence[str] | None, density: float = 0.0) -> list[Composition]:
    """Every method at the rate that its search found."""
    of = {label: DENSE for label in OTHER_DENSE} | {label: method for label, (method, *_) in CAUSES.items()}
    return at_rates(part, names, size, lambda label: of.get(label, label))


SEARCHES = tuple(
    _task(f"gpt_{name}{SEARCH}", size, AT, 1, partial(_searching, name), ("data.tested=validation",))
    for name, size in SIZES.items()
    if size.rates == name
)
SIZED = tuple(
    _task(f"gpt_{name}_{ratio}", size, ratio, 3, partial(_trained, name))
    for ratio in sorted(RATIOS, key=lambda ratio: ratio != AT)
    for name, size in SIZES.items()
)
"""Those with 20 tokens a parameter first."""
JUDGED = SIZED[: len(SIZES)]
"""Those by which claims of losses are judged: at the ratio at which rates were searched."""


def search_page(folder: Path, task: Task) -> Page | None:
    """The losses by rate, and the rates that were found; None where nothing has run."""
    methods = methods_in(folder, task)
    if not methods:
        return None
    by_label = _by_rate(runs_of(methods))
    known = {label: _searched(tried) for label, tried in by_label.items()}
    rows = [
        [label, f"{known[label].rate:g}", str(len(tried)), "yes" if known[label].settled else "no", *[
            ", ".join(f"{rate:g}: {tried[rate]:.4f}" if tried[rate] < math.inf else f"{rate:g}: diverged"
            for rate in sorted(tried))
        ]]
        for label, tried in by_label.items()
    ]  # fmt: skip
    run = methods[0].runs[0]
    unsettled = [label for label in task.settings if label not in known or not known[label].settled]
    lost = [label for label in unsettled if label in known and len(known[label].tried) >= MOST]
    going = [label for label in unsettled if label not in lost]
    text = [
        f"# Learning rates of every method: {task.name}",
        "",
        f"Loss on the validation split with the first seed, nats a byte; {tokens(runs_of(methods))} tokens a "
        f"parameter, {run.record['parameters']:,} parameters. Each method has {len(FACTORS)} rates, from a quarter to "
        f"four times of a first guess, and one more while its best rate is the lowest or the highest, {MOST} at most. "
        f"The test split is not read. On {run.machine}; made by `wirebench study accuracy run`, which runs "
        f"`{run.note['launch']}` and the like.",
        "",
        *table(("method", "best rate", "rates tried", "search is over", "loss by rate"), rows),
        *([f"Searches that are not over: {', '.join(going)}. They have no rate yet.", ""] if going else []),
        *([f"{', '.join(lost)}: no rate after {MOST} rates, the best of which is at an end.", ""] if lost else []),
        *trust.note({method.label: method.runs for method in methods}, "counts"),
    ]
    return Page(folder, "\n".join(text))


# --- What the rates are for


def page(folder: Path, task: Task) -> Page | None:
    """The losses of a size at a number of tokens a parameter; None where nothing has run."""
    every = sorted(methods_in(folder, task), key=by_loss)
    if not every:
        return None
    dense, methods = dense_of(every), [each for each in every if each.label in (*METHODS, *OTHER_DENSE)]
    whole = [each for each in methods if each.label not in OTHER_DENSE]
    family = dict(zip((each.label for each in whole), against_dense(whole), strict=True))
    rows = [
        [
            method.title, str(len(method.runs)), tokens(method.runs), spread(losses(method)), _gap(method, dense),
            "-" if (compared := family.get(method.label)) is None else compared.words,
            cells.dense_tokens(method, every), cells.fewer(method, dense), cells.rates(method),
        ]
        for method in methods
    ]  # fmt: skip
    run = every[0].runs[0]
    searched = SIZES[_size(task).rates]
    text = [
        f"# Every method at {tokens(runs_of(whole))} tokens a parameter: {task.name}",
        "",
        f"A GPT of {run.record['parameters']:,} parameters on Python's and packages' sources, a byte a token, each "
        f"read once; {run.record['world_size']} virtual workers of {_size(task).batch} sequences of {LENGTH} bytes. "
        "Loss of the test split, nats a byte; after its sign, the standard deviation over seeds. The gap is the loss "
        "over dense training's, less 1, with its interval of 95 % (Fieller). Every method has the rate that its own "
        f"search found on the validation split, with {AT} tokens a parameter and {searched.parameters:,} parameters. "
        f"On {run.machine}; made by `wirebench study accuracy run`, which runs `{run.note['launch']}` and the like.",
        "",
        *table(HEAD, [*rows, lossless.row(HEAD, "fewer bytes", lossless.LANGUAGE)]),
        "`dense tokens for it`: on this share of the tokens dense training comes to the method's loss, on a line over "
        f"the logarithm between {', '.join(SHORTER)} and {DENSE}. What a gap means depends on it: the more tokens a "
        "model has had, the less a share of them is worth.",
        "",
        *lossless.note(lossless.LANGUAGE),
        multiplicity(family.values()),
        "",
        *_causes(every, dense),
        *(_claims(task, every) if task in JUDGED else []),
        *missing(task, every),
        *trust.note({method.label: method.runs for method in every}, "seeds"),
    ]  # fmt: skip
    return Page(folder, "\n".join(text))


def _causes(methods: Sequence[MethodRuns], dense: MethodRuns | None) -> list[str]:
    """A table of the methods of which one thing was changed; nothing without both rows."""
    by_label = {method.label: method for method in methods}
    rows = [
        [method, label.removeprefix(method).strip(), *(
            _gap(by_label[each], dense) if each in by_label else "-" for each in (method, label, f"{label}{OWN_RATE}")
        ), cells.fewer(by_label[label], dense)]
        for label, (method, *_) in CAUSES.items()
        if label in by_label and method in by_label
    ]  # fmt: skip
    gaps = ("gap of the method", "gap with the change", "with the change and a rate searched for it")
    head = ("method", "changed", *gaps, "fewer bytes with the change")
    return ["What a gap comes from: one thing changed, at the method's rate.", "", *table(head, rows)] if rows else []


def _claims(task: Task, methods: Sequence[MethodRuns]) -> list[str]:
    found = with_unrun(verdicts.findings(task, methods, None), verdicts.claims_of(task))
    return [
        "What papers claim of losses, beside these runs, at the rates that were searched:",
        "",
        *claims_table(found),
    ]


def missing(task: Task, methods: Sequence[MethodRuns]) -> list[str]:
    """A line on the methods and the seeds of a task that have no run yet; none where all have."""
    there = {method.label: len(method.runs) for method in methods}
    some = [f"{label} ({there[label]} of {task.seeds} seeds)" for label in there if there[label] < task.seeds]
    none = [label for label in task.settings if label not in there]
    told = [f"without a run: {', '.join(none)}"] * bool(none) + [f"unfinished: {', '.join(some)}"] * bool(some)
    return [f"Not measured yet, {'; '.join(told)}.", ""] if told else []


def summary(out: Path) -> Page | None:
    """The gaps of all sizes and numbers of tokens: a table and a figure; None where nothing has run."""
    folder = out / SERIES
    there = [(task, {each.label: each for each in methods_in(folder / task.name, task)}) for task in SIZED]
    known = [(task, methods) for task, methods in there if methods]
    labels = [label for label in METHODS if any(label in methods for _, methods in known)]
    if not labels:
        return None
    rows = [
        [label, *(_gap(methods[label], methods.get(DENSE)) if label in methods else "-" for _, methods in known)]
        for label in labels
        if label != DENSE
    ]
    heads = [
        f"{_parameters(task)}, {tokens(runs_of(methods[label] for label in labels if label in methods))}"
        for task, methods in known
    ]
    without = [f"{_parameters(task)}, {task.name.rpartition('_')[2]}" for task, methods in there if not methods]
    runs = [run for _, methods in known for run in runs_of(methods.values())]
    figure = _figure(known, labels, provenance_of(runs))
    text = [
        "# What a method loses, by size and by tokens a parameter",
        "",
        "Gap: the test loss over dense training's, less 1, at the rates that each method's own search found; in "
        "brackets the interval of 95 % over seeds. Columns are parameters, and tokens a parameter. Rates were "
        f"searched at {AT} tokens a parameter, for {_parameters(SIZED[-1])} with "
        f"{SIZES[_size(SIZED[-1]).rates].parameters:,} parameters.",
        "",
        *table(("method", *heads), rows),
        *([f"Without a run: {'; '.join(without)} tokens a parameter.", ""] if without else []),
        *(["![gaps](gaps.svg)", ""] if figure is not None else []),
    ]
    return Page(folder, "\n".join(text), {"gaps.svg": figure})


def _figure(known: Sequence[_Known], labels: Sequence[str], where: str) -> Figure | None:
    """A panel for each number of tokens a parameter: gaps by parameters; None without a gap at two sizes."""
    panels, lines_of = [], {}
    for ratio in RATIOS:
        those = [each for each in known if each[0].name.endswith(f"_{ratio}")]
        lines_of[ratio] = [line for label in labels if (line := _line(label, those)) is not None]
    every = [line for lines in lines_of.values() for line in lines]
    if not every:
        return None
    across = Axis("parameters, millions", (0.08, 1.3), log=True, values=[0.1, 0.3, 1.0])
    up = around("gap to dense training, %", [value for line in every for value in (*line.low, *line.high)])
    for ratio, lines in lines_of.items():
        if lines:
            panels.append(
                curves(lines, across, up, f"about {ratio} tokens a parameter", spread="bars", width=260, height=260)
            )
    note = f"Means over seeds, bars from the least to the largest seed's. {where}."
    return grid(panels, "What a method loses against dense training", note, len(panels), len(panels) * 430)


def _line(label: str, known: Sequence[_Known]) -> Curve | None:
    """The gaps of a method by size; None where fewer than two sizes have one."""
    points = []
    for task, methods in known:
        mine, dense = methods.get(label), methods.get(DENSE)
        if label != DENSE and mine and dense and losses(mine) and losses(dense):
            base = statistics.mean(losses(dense))
            points.append((task.parameters / 1e6, [100 * (loss / base - 1) for loss in losses(mine)]))
    if len(points) < 2:
        return None
    gaps = [statistics.mean(each) for _, each in points]
    low, high = ([of(each) for _, each in points] for of in (min, max))
    return Curve(label, colours.method(label), [at for at, _ in points], gaps, low, high)


def _size(task: Task) -> ModelSize:
    [size] = [each for each in SIZES.values() if each.parameters == task.parameters]
    return size


def _parameters(task: Task) -> str:
    return next(name for name, size in SIZES.items() if size.parameters == task.parameters)


def _gap(method: MethodRuns, dense: MethodRuns | None) -> str:
    if dense is None or method is dense or not losses(method) or not losses(dense):
        return "-" if not method.ends else ", ".join(dict.fromkeys(method.ends))
    ratio = estimate.ratio_of_means(losses(method), losses(dense)).mapped(lambda value: 100 * (value - 1))
    return ratio.words("{:+.2f} %", "{:+.2f}")
