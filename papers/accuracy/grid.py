"""A measured map: links x local steps of a round x methods, trained on four emulated hosts until a loss is reached.

Each cell trains the smallest GPT of sizes.py, 21 tokens a parameter, three seeds, at the rate that its method's search
found (with rounds of 32 local steps). The test loss is measured eight times in a run; evaluations count for no time.
The target is a loss that dense training reaches in every seed: MARGIN above its mean final loss. Beside every measured
step stands the one that the cost model says of it: the same computing, the exchange simulated.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from papers import estimate, trust
from papers.accuracy.curve import pace, passes_seconds
from papers.accuracy.modern import DENSE, OWN
from papers.accuracy.rows import MethodRuns, history, load, losses, runs_of
from papers.accuracy.sizes import CONFIG, LENGTH, LOCAL, METHODS, PER_STEP, SIZES, at_rate, found, spread
from papers.accuracy.task import Composition, Task, listed, refuse_others
from papers.page import Page
from papers.trainings import OwnCluster
from wirebench.errors import UserError
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import provenance
from wirebench.figures.style import Figure, around, finished
from wirebench.record.notes import NotedRun
from wirebench.topology.rates import parse_rate
from wirebench.utils.markdown import table

SERIES, SIZE, HOSTS = "grid", "0.1m", 4
LINKS = ("200mbit", "50mbit", "1gbit", "10mbit")
"""In the order in which they are measured."""
PARTS, STEPS = 8, 512
"""Evaluations of a run, and its steps: whole rounds of 128."""
ROUNDS = (8, 32, 128)
MARGIN = 0.01
"""By how much the target is above dense training's mean final loss, as a share of it."""
FIRST = (DENSE, "bf16", "quantised_sum int8", "quantised_sum", "topk", "powersgd", "demo")
_BYTES = STEPS * PER_STEP + PARTS * LENGTH
NAMED_FLOPS = 0.4 * 312e12
"""Of an A100 in bf16 that computes with 40 % of its peak."""
NAMED_PARAMETERS, NAMED_TOKENS = 124e6, 8 * 1024
"""GPT-2's small model, and a worker's tokens of a step."""


def _rounds(label: str) -> dict[str, tuple[str, ...]]:
    """A method of local steps by the length of its rounds; rounds of 32 first."""
    order = sorted(ROUNDS, key=lambda every: (every != 32, every))
    return {f"{label} every={every}": (*METHODS[label], f"scheduler.every={every}") for every in order}


_BY_LOCAL = [_rounds(label) for label in LOCAL]
_LABELS: Mapping[str, tuple[str, ...]] = {
    **{label: METHODS[label] for label in FIRST},
    # The cells of one length of rounds lie together: rounds of 32 come first.
    **{label: words for group in zip(*(each.items() for each in _BY_LOCAL), strict=True) for label, words in group},
}


def _trained(part: Task, names: Sequence[str] | None, density: float = 0.0) -> list[Composition]:
    """The cells of a link whose methods have a rate; UserError for a named one that has none."""
    chosen, every = found(SIZE), listed(part, names)
    lacking = [each.label for each in every if _method(each.label) not in chosen]
    if names is not None and lacking:
        raise UserError(
            f"--methods: {', '.join(lacking)}: has no rate; first wirebench study accuracy run --task gpt_{SIZE}_search"
        )
    return [
        Composition(each.label, at_rate(each.overrides, chosen[_method(each.label)].rate))
        for each in every
        if _method(each.label) in chosen
    ]


def _method(label: str) -> str:
    return label.partition(" every=")[0]


CELLS = tuple(
    Task(
        f"gpt_{SIZE}_{link}", SERIES, CONFIG, PARTS, 3, SIZES[SIZE].parameters, partial(_trained), data=False,
        shared=(f"data.train_bytes={_BYTES}", f"data.parts={PARTS}", f"optimizer.warmup_epochs={0.05 * PARTS:g}",
                "engine.name=auto", "engine.workers=0"),
        settings=_LABELS, own=OWN, place=OwnCluster(link, HOSTS),
    )
    for link in LINKS
)  # fmt: skip


class Cell(NamedTuple):
    """What was measured of a method on a link, by seed where it is a tuple.

    step       seconds of a mean step; predicted: by the cost model, None where it does not say
    nbytes     bytes of a step on the interface of rank 0's host
    to_target  seconds until the target; infinite where a seed did not reach it
    """

    method: MethodRuns
    step: float
    predicted: float | None
    nbytes: float
    to_target: tuple[float, ...]

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured."""
        return None if self.predicted is None else self.predicted / self.step - 1


def page(folder: Path, task: Task) -> Page | None:
    """The cells of a link; None where nothing has run."""
    cells, target = cells_of(folder, task)
    if not cells:
        return None
    dense = next((each for each in cells if each.method.label == DENSE), None)
    run = cells[0].method.runs[0]
    link = task.place.link if task.place else ""
    rows = [_row(each, dense) for each in cells]
    text = [
        f"# Time to a loss on links of {link}",
        "",
        f"A GPT of {run.record['parameters']:,} parameters, {STEPS} steps of {PER_STEP:,} bytes, {HOSTS} emulated "
        f"hosts of one {run.machine}. The target is a test loss of {target:.4f} nats a byte, {100 * MARGIN:g} % above "
        "dense training's mean final loss. Times are of training, without evaluations; in brackets the interval "
        "of 95 % over seeds. `predicted` is the same computing with a simulated exchange. Bytes are the "
        f"interface's. {_same_ratio(cells, link)} Made by `wirebench study accuracy run`, which runs "
        f"`{run.note['launch']}` and the like.",
        "",
        *table(
            ("method", "seeds", "ms a step", "predicted", "kB a step", "test loss", "s to the target",
             "over dense", "loss after dense's time"),
            rows,
        ),
        *_errors(cells),
        *trust.note({each.method.label: each.method.runs for each in cells}, ""),
    ]  # fmt: skip
    return Page(folder, "\n".join(text))


def cells_of(folder: Path, task: Task) -> tuple[list[Cell], float]:
    """The cells of a link, dense training first, then by their time; and the target's loss, infinite without dense."""
    methods = load(folder, own=OWN)
    refuse_others(folder, runs_of(methods), task, task.methods(task, None, 0.0))
    dense = next((losses(each) for each in methods if each.label == DENSE), [])
    target = (1 + MARGIN) * statistics.mean(dense) if dense else math.inf
    cells = [_cell(each, target, task) for each in methods]
    return sorted(cells, key=lambda each: (each.method.label != DENSE, statistics.mean(each.to_target))), target


def _cell(method: MethodRuns, target: float, task: Task) -> Cell:
    steps = [_seconds(run)[-1] / STEPS for run in method.runs if not run.diverged]
    gbit = parse_rate(task.place.link) / 1e9 if task.place else math.inf
    paces = [pace(run, gbit, passes_seconds(run)) for run in method.runs if not run.diverged]
    known = [each.seconds for each in paces if each is not None]
    return Cell(
        method,
        statistics.mean(steps) if steps else math.inf,
        statistics.mean(known) if known else None,
        statistics.mean(method.each(lambda run: run.has("bytes_per_step", "nic")) or [math.nan]),
        tuple(_first_time(run, target) for run in method.runs),
    )


def _seconds(run: NotedRun) -> list[float]:
    """Seconds of training until the end of each epoch, without its evaluations."""
    each = [entry["seconds"] - (entry.get("eval_seconds") or 0.0) for entry in history(run)]
    return [sum(each[: place + 1]) for place in range(len(each))] or [math.inf]


def _points(run: NotedRun) -> list[tuple[float, float]]:
    """(seconds, test loss) after each epoch."""
    tested = zip(_seconds(run), history(run), strict=False)
    return [(at, entry["test_loss"]) for at, entry in tested if entry.get("test_loss") is not None]


def _first_time(run: NotedRun, target: float) -> float:
    """Seconds until the loss is first at most `target`, on a straight line between evaluations; infinite: never."""
    points = _points(run)
    if points and points[0][1] <= target:
        return points[0][0]
    for (before, high), (after, low) in pairwise(points):
        if low <= target:
            return before + (after - before) * (high - target) / (high - low)
    return math.inf


def _loss_at(run: NotedRun, seconds: float) -> float:
    """The loss after `seconds`, on a straight line between evaluations; the last one's after the run's end."""
    points = _points(run)
    for (before, high), (after, low) in pairwise(points):
        if before <= seconds <= after:
            return high + (low - high) * (seconds - before) / (after - before)
    return points[-1][1] if points and seconds > points[-1][0] else math.inf


def _row(cell: Cell, dense: Cell | None) -> list[str]:
    method, reached = cell.method, [each for each in cell.to_target if each < math.inf]
    whole = len(reached) == len(method.runs)
    time = estimate.mean(reached).words("{:.1f}", "{:.1f}") if whole else f"{len(reached)} of {len(method.runs)} seeds"
    over = "-"
    if dense is not None and whole and cell is not dense and max(dense.to_target) < math.inf:
        over = estimate.ratio_of_means(dense.to_target, reached).words()
    after = "-"
    if dense is not None and dense.step < math.inf:
        after = f"{statistics.mean(_loss_at(run, STEPS * dense.step) for run in method.runs):.4f}"
    predicted = "-" if cell.predicted is None else f"{1e3 * cell.predicted:.1f} ({100 * (cell.error or 0.0):+.0f} %)"
    return [
        method.title, str(len(method.runs)), f"{1e3 * cell.step:.1f}", predicted, f"{cell.nbytes / 1e3:.1f}",
        spread(losses(method)), time, over, after,
    ]  # fmt: skip


def _errors(cells: Sequence[Cell]) -> list[str]:
    """A line about the predictions: their errors, and the order of methods."""
    known = [(each.step, each.predicted, each.error) for each in cells if each.predicted is not None]
    errors = [abs(error) for _, _, error in known if error is not None]
    if len(errors) < 2:
        return []
    tau = _tau([step for step, _, _ in known], [predicted or 0.0 for _, predicted, _ in known])
    mean, worst = 100 * statistics.mean(errors), 100 * max(errors)
    return [f"Predicted steps: mean error {mean:.1f} %, worst {worst:.0f} %; Kendall's tau of the order {tau:.2f}.", ""]


def _tau(first: Sequence[float], second: Sequence[float]) -> float:
    pairs = [(a, b) for a in range(len(first)) for b in range(a)]
    signs = [math.copysign(1, (first[a] - first[b]) * (second[a] - second[b])) for a, b in pairs]
    return sum(signs) / len(signs)


def _same_ratio(cells: Sequence[Cell], link: str) -> str:
    """At which link a named job has the same ratio of dense exchange to computing; "" without a dense cell."""
    dense = next((each for each in cells if each.method.label == DENSE), None)
    if dense is None:
        return ""
    computing = statistics.mean(passes_seconds(run) for run in dense.method.runs)
    share = 2 * (HOSTS - 1) / HOSTS
    ratio = share * 32 * SIZES[SIZE].parameters / parse_rate(link) / computing
    theirs = 6 * NAMED_PARAMETERS * NAMED_TOKENS / NAMED_FLOPS
    gbit = share * 32 * NAMED_PARAMETERS / (ratio * theirs) / 1e9
    return (
        f"A ring's dense exchange takes {ratio:.2g} times a pass's computing here. The same ratio has GPT-2 of 124M on "
        f"A100s at 40 % of their peak, {NAMED_TOKENS:,} tokens a worker, with links of {gbit:.2g} Gbit/s."
    )


def summary(out: Path) -> Page | None:
    """By method and link how much sooner than dense training the target is reached; None where nothing has run."""
    there = [(task, cells_of(out / task.folder, task)[0]) for task in CELLS]
    known = sorted(((task, cells) for task, cells in there if cells), key=lambda each: _gbit(each[0]))
    if not known:
        return None
    by_link = [(task, {each.method.label: each for each in cells}) for task, cells in known]
    labels = [label for label in _LABELS if any(label in cells for _, cells in by_link)]
    rows = [[label, *(_gain(cells, label) for _, cells in by_link)] for label in labels if label != DENSE]
    runs = [run for _, cells in known for each in cells for run in each.method.runs]
    figure = _figure(by_link, labels, provenance(run.has("environment") or {} for run in runs))
    heads = [task.place.link if task.place else "" for task, _ in by_link]
    text = [
        "# The measured map: how much sooner a loss is reached",
        "",
        "Dense training's seconds to the target over the method's, on four emulated hosts; in brackets the interval of "
        "95 % over seeds. Dense training reaches the target in every seed.",
        "",
        *table(("method", *heads), rows),
        *(["![gains](gains.svg)", ""] if figure is not None else []),
    ]
    return Page(out / SERIES, "\n".join(text), {"gains.svg": figure})


def _gbit(task: Task) -> float:
    return parse_rate(task.place.link) / 1e9 if task.place else math.inf


def _gain(cells: Mapping[str, Cell], label: str) -> str:
    cell, dense = cells.get(label), cells.get(DENSE)
    if cell is None or dense is None:
        return "-"
    if max((*cell.to_target, *dense.to_target)) == math.inf:
        return "not reached"
    return estimate.ratio_of_means(dense.to_target, cell.to_target).words()


def _figure(by_link: Sequence[tuple[Task, Mapping[str, Cell]]], labels: Sequence[str], where: str) -> Figure | None:
    """A curve for each method that reached the target on two links, over the links' rate; None without any."""
    lines = []
    for label in labels:
        points = []
        for task, cells in by_link:
            cell, dense = cells.get(label), cells.get(DENSE)
            if cell and dense and max((*cell.to_target, *dense.to_target)) < math.inf:
                points.append((_gbit(task), statistics.mean(dense.to_target) / statistics.mean(cell.to_target)))
        if len(points) > 1:
            lines.append(Curve(label, colours.method(label), [at for at, _ in points], [gain for _, gain in points]))
    if not lines:
        return None
    across = around("links, Gbit/s", [float(at) for line in lines for at in line.across], log=True)
    up = around("time of dense training over the method's", [value for line in lines for value in line.up], log=True)
    return finished(
        curves(lines, across, up, "How much sooner a loss is reached", f"Means over seeds. {where}.", height=320)
    )
