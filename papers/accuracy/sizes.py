"""GPTs of three sizes at three numbers of tokens a parameter: what a gap of a small run says about a large one.

A token is a byte. Every method has the rate that its own search found: five rates or more on the validation split, the
same number for each method, with 20 tokens a parameter. Where the best one is the lowest or the highest, the next call
of `wirebench study accuracy run` tries one beyond it. The largest size has the rates of the middle one. The search
writes chosen.json beside its table, which the other tasks read.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from papers import estimate, lossless, trust
from papers.accuracy.modern import DENSE, OWN, SETTINGS, adams
from papers.accuracy.rows import MethodRuns, against, bytes_of, load, losses, multiplicity, runs_of
from papers.accuracy.task import Composition, Task, listed, refuse_others
from papers.page import Page
from papers.runner import RESULTS
from papers.significance import corrected
from wirebench.errors import UserError
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import provenance
from wirebench.figures.style import Axis, Figure, around, grid
from wirebench.utils.markdown import table

CONFIG, SERIES = "configs/tables/sizes_gpt.toml", "sizes"
WORKERS, BATCH, LENGTH = 4, 8, 128
PER_STEP = WORKERS * BATCH * LENGTH
"""Tokens of a step of all workers."""
HEAD = ("method", "seeds", "test loss", "gap", "against dense (Welch)", "fewer bytes", "rate")
ROUND = 32
"""Local steps of a round: a run has whole rounds, so that its last step exchanges."""


class Size(NamedTuple):
    """A model: blocks, width, heads; and the size that has its rates."""

    parameters: int
    depth: int
    width: int
    heads: int
    rates: str


SIZES = {
    "0.1m": Size(98_336, 2, 56, 2, "0.1m"),
    "0.3m": Size(316_184, 3, 88, 4, "0.3m"),
    "1m": Size(1_058_400, 4, 144, 4, "0.3m"),
}
RATIOS = (2, 20, 60)
"""Tokens a parameter; 20 are those at which a dense model of a given cost is best (Hoffmann et al., "Training
Compute-Optimal Large Language Models", 2022)."""
AT = 20
FACTORS = (1 / 4, 1 / 2, 1.0, 2.0, 4.0)
"""Rates that are tried of every method, as shares of modern.py's: those were found by a coarse search at 1.9 million
parameters."""
SEARCH = "_search"
CHOSEN = "chosen.json"
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


def steps(size: Size, ratio: float) -> int:
    """Steps of a run with `ratio` tokens a parameter, in whole rounds."""
    return max(round(ratio * size.parameters / PER_STEP / ROUND), 1) * ROUND


def at_rate(words: Sequence[str], rate: float) -> tuple[str, ...]:
    """A method's words with this learning rate, and the weight decay that goes with it."""
    return (*words, f"optimizer.lr={rate:.3g}", f"optimizer.weight_decay={DECAY / rate:.4g}")


def _task(name: str, size: Size, ratio: float, seeds: int, methods: Any, more: tuple[str, ...] = ()) -> Task:
    count = steps(size, ratio)
    shape = (f"model.depth={size.depth}", f"model.width={size.width}", f"model.heads={size.heads}")
    # One more sequence, in which the cuts shift.
    shared = (*shape, f"data.train_bytes={count * PER_STEP + LENGTH}", *more)
    settings = {label: (*words, *adams(count).get(label, ())) for label, words in METHODS.items()}
    return Task(
        name, SERIES, CONFIG, 1, seeds, size.parameters, methods, data=False, shared=shared, settings=settings, own=OWN
    )


_Known = tuple[Task, Mapping[str, MethodRuns]]
"""A task, and its methods by label."""


# --- The search


class Searched(NamedTuple):
    """What a search found of a method: the best rate, the rates that were tried, and whether the best is at an end."""

    rate: float
    tried: tuple[float, ...]

    @property
    def beyond(self) -> float | None:
        """The rate to be tried next; None where the best one has a neighbour on both sides."""
        factor = FACTORS[-1] / FACTORS[-2]
        if self.rate == max(self.tried):
            return self.rate * factor
        return self.rate / factor if self.rate == min(self.tried) else None


def found(size: str) -> dict[str, Searched]:
    """By label what the search of this size found; nothing where none has run."""
    path = RESULTS / SERIES / f"gpt_{size}{SEARCH}" / CHOSEN
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from error
    return {label: Searched(each["rate"], tuple(each["tried"])) for label, each in known.items()}


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
    """Every method at the rate that its search found; UserError where it has none."""
    chosen, every = found(SIZES[size].rates), listed(part, names)
    lacking = [each.label for each in every if each.label not in chosen]
    if names is not None and lacking:
        raise UserError(
            f"--methods: {', '.join(lacking)}: has no rate; first wirebench study accuracy run --task "
            f"gpt_{SIZES[size].rates}{SEARCH}"
        )
    return [
        Composition(each.label, at_rate(each.overrides, chosen[each.label].rate))
        for each in every
        if each.label in chosen
    ]


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


def search_page(folder: Path, task: Task) -> Page | None:
    """The losses by rate, and the rates that were found; None where nothing has run."""
    methods = load(folder, own=OWN)
    if not methods:
        return None
    refuse_others(folder, runs_of(methods), task, task.methods(task, None, 0.0))
    by_label: dict[str, dict[float, float]] = {}
    for method in methods:
        label, _, rate = method.label.rpartition(" lr=")
        by_label.setdefault(label, {})[float(rate)] = next(iter(losses(method)), math.inf)
    best = {label: min(tried, key=tried.__getitem__) for label, tried in by_label.items()}
    rows = [
        [label, f"{best[label]:g}", str(len(tried)), "yes" if best[label] in (min(tried), max(tried)) else "no", *[
            ", ".join(f"{rate:g}: {tried[rate]:.4f}" if tried[rate] < math.inf else f"{rate:g}: diverged"
            for rate in sorted(tried))
        ]]
        for label, tried in by_label.items()
    ]  # fmt: skip
    run = methods[0].runs[0]
    text = [
        f"# Learning rates of every method: {task.name}",
        "",
        f"Loss on the validation split with the first seed, nats a byte; {AT} tokens a parameter, "
        f"{run.record['parameters']:,} parameters. On {run.machine}; made by `wirebench study accuracy run`, which "
        f"runs `{run.note['launch']}` and the like.",
        "",
        *table(("method", "best rate", "rates tried", "best at an end", "loss by rate"), rows),
        *trust.note({method.label: method.runs for method in methods}, ""),
    ]
    rates = {label: {"rate": best[label], "tried": sorted(tried)} for label, tried in by_label.items()}
    return Page(folder, "\n".join(text), files={CHOSEN: json.dumps(rates, indent=1) + "\n"})


# --- What the rates are for


def methods_of(folder: Path, task: Task) -> list[MethodRuns]:
    """All methods of a task that have runs, dense first, then by their losses; UserError for other settings."""
    methods = load(folder, own=OWN)
    refuse_others(folder, runs_of(methods), task, task.methods(task, None, 0.0))
    return sorted(methods, key=lambda each: (each.label != DENSE, statistics.mean(losses(each) or [math.inf])))


def page(folder: Path, task: Task) -> Page | None:
    """The losses of a size at a number of tokens a parameter; None where nothing has run."""
    methods = methods_of(folder, task)
    if not methods:
        return None
    dense = next((method for method in methods if method.label == DENSE), None)
    family = corrected([_compared(method, dense) for method in methods])
    rows = [
        [
            method.title, str(len(method.runs)), spread(losses(method)), _gap(method, dense),
            "-" if compared is None else compared.words, _fewer(method, dense),
            " or ".join(f"{rate:g}" for rate in dict.fromkeys(method.each(_rate))),
        ]
        for method, compared in zip(methods, family, strict=True)
    ]  # fmt: skip
    run = methods[0].runs[0]
    tokens = PER_STEP * _steps(task)
    text = [
        f"# Every method at {tokens / task.parameters:.1f} tokens a parameter: {task.name}",
        "",
        f"A GPT of {run.record['parameters']:,} parameters on {tokens:,} bytes of Python's and packages' sources, "
        f"{run.record['world_size']} virtual workers of {BATCH} sequences of {LENGTH} bytes. Loss of the test split, "
        "nats a byte; after its sign, the standard deviation over seeds. The gap is the loss over dense training's, "
        "less 1, with its interval of 95 % (Fieller). Every method has the rate that its own search found on the "
        f"validation split. On {run.machine}; made by `wirebench study accuracy run`, which runs "
        f"`{run.note['launch']}` and the like.",
        "",
        *table(HEAD, [*rows, lossless.row(HEAD, "fewer bytes", lossless.LANGUAGE)]),
        *lossless.note(lossless.LANGUAGE),
        multiplicity(family),
        "",
        *trust.note({method.label: method.runs for method in methods}, "seeds"),
    ]
    return Page(folder, "\n".join(text))


def summary(out: Path) -> Page | None:
    """The gaps of all sizes and numbers of tokens: a table and a figure; None where nothing has run."""
    folder = out / SERIES
    there = [(task, {each.label: each for each in methods_of(folder / task.name, task)}) for task in SIZED]
    known = [(task, methods) for task, methods in there if methods]
    labels = [label for label in METHODS if any(label in methods for _, methods in known)]
    if not labels:
        return None
    rows = [
        [label, *(_gap(methods[label], methods.get(DENSE)) if label in methods else "-" for _, methods in known)]
        for label in labels
        if label != DENSE
    ]
    heads = [task.name.removeprefix("gpt_").replace("_", ", ") for task, _ in known]
    runs = [run for _, methods in known for run in runs_of(methods.values())]
    figure = _figure(known, labels, provenance(run.has("environment") or {} for run in runs))
    text = [
        "# What a method loses, by size and by tokens a parameter",
        "",
        "Gap: the test loss over dense training's, less 1, at the rates that each method's own search found; in "
        "brackets the interval of 95 % over seeds. Columns are parameters, and tokens a parameter.",
        "",
        *table(("method", *heads), rows),
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
                curves(lines, across, up, f"{ratio} tokens a parameter", spread="bars", width=260, height=260)
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


def _steps(task: Task) -> int:
    [size] = [each for each in SIZES.values() if each.parameters == task.parameters]
    return steps(size, float(task.name.rpartition("_")[2]))


def _compared(method: MethodRuns, dense: MethodRuns | None) -> Any:
    return against(losses(method), losses(dense)) if dense is not None and method is not dense else None


def _gap(method: MethodRuns, dense: MethodRuns | None) -> str:
    if dense is None or method is dense or not losses(method) or not losses(dense):
        return "-" if not method.ends else ", ".join(dict.fromkeys(method.ends))
    ratio = estimate.ratio_of_means(losses(method), losses(dense)).mapped(lambda value: 100 * (value - 1))
    return ratio.words("{:+.2f} %", "{:+.2f}")


def _fewer(method: MethodRuns, dense: MethodRuns | None) -> str:
    mine, base = bytes_of(method), bytes_of(dense) if dense else None
    return f"{base / mine:.3g}x" if mine and base else "-"


def _rate(run: Any) -> float | None:
    rate: float | None = run.has("config", "optimizer", "lr")
    return rate


def spread(values: Sequence[float]) -> str:
    """A mean of losses, and their standard deviation where there are several."""
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.4f}"
    return mean if len(values) < 2 else f"{mean} +- {statistics.stdev(values):.4f}"
