"""A measured map: links x local steps of a round x methods, trained on four emulated hosts until a loss is reached.

Each cell trains the smallest GPT of sizes.py, 21 tokens a parameter, three seeds, at the rate that its method's search
found (with rounds of 32 local steps). Methods of local steps have four times the tokens, too. The test loss is measured
eight times in a run; evaluations count for no time. The target is MARGIN above dense training's mean final loss;
whether its seeds reach it is measured like any method's. Beside every measured step stands the one that the cost model
says of it: the same computing, the exchange simulated.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations, pairwise
from pathlib import Path
from typing import NamedTuple

from papers import estimate, trust
from papers.accuracy.curve import passes_seconds
from papers.accuracy.modern import DENSE, OWN
from papers.accuracy.priced import PAYLOAD, Constants, constants, priced, seconds_of
from papers.accuracy.rows import MethodRuns, dense_of, history, losses, tokens
from papers.accuracy.sizes import CONFIG, LENGTH, LOCAL, METHODS, ROUND, SIZES, at_rates, missing
from papers.accuracy.task import Composition, Task, methods_in
from papers.page import Page
from papers.rows import provenance_of, spread
from papers.significance import LEVEL, compare, tau_of
from papers.trainings import OwnCluster
from wirebench.figures import colours
from wirebench.figures.curves import Curve, curves
from wirebench.figures.style import Figure, around, finished
from wirebench.record.notes import NotedRun
from wirebench.topology.rates import parse_rate
from wirebench.utils.markdown import table

SERIES, SIZE, HOSTS = "grid", "0.1m", 4
LINKS = ("200mbit", "50mbit", "1gbit", "10mbit")
"""In the order in which they are measured."""
PARTS, STEPS = 8, 1024
"""Evaluations of a run, and its steps: whole rounds of 128."""
ROUNDS = (8, 32, 128)
LONGER = 4
"""Times the tokens that methods of local steps have once more: on a slow link they still take less time."""
MARGIN = 0.01
"""By how much the target is above dense training's mean final loss, as a share of it."""
REPEATS = "timed seeds"
"""What a cell needs several of, on a machine that does nothing else."""
FIRST = (DENSE, "muon", "bf16", "quantised_sum int8", "quantised_sum", "topk", "powersgd", "demo")
NAMED_FLOPS = 0.4 * 312e12
"""Of an A100 in bf16 that computes with 40 % of its peak."""
NAMED_PARAMETERS, NAMED_TOKENS = 124e6, 8 * 1024
"""GPT-2's small model, and a worker's tokens of a step."""


def _bytes(times: int) -> str:
    """The setting of the text that `times` x STEPS steps read."""
    return f"data.train_bytes={times * STEPS * SIZES[SIZE].per_step + PARTS * LENGTH}"


def _rounds(label: str) -> dict[str, tuple[str, ...]]:
    """A method of local steps by the length of its rounds and by its tokens; rounds of 32 first."""
    order = [(ROUND, 1), (ROUND, LONGER), *((every, 1) for every in ROUNDS if every != ROUND)]
    return {
        f"{label} every={every}{f' tokens={times}x' * (times > 1)}": (
            *METHODS[label], f"scheduler.every={every}", *([_bytes(times)] * (times > 1)),
        )
        for every, times in order
    }  # fmt: skip


_BY_LOCAL = [_rounds(label) for label in LOCAL]
_LABELS: Mapping[str, tuple[str, ...]] = {
    **{label: METHODS[label] for label in FIRST},
    # The cells of one length of rounds lie together: rounds of 32 come first.
    **{label: words for group in zip(*(each.items() for each in _BY_LOCAL), strict=True) for label, words in group},
}


def _trained(part: Task, names: Sequence[str] | None, density: float = 0.0) -> list[Composition]:
    """The cells of a link whose methods have a rate; UserError for a named one that has none."""
    return at_rates(part, names, SIZE, _method)


def _method(label: str) -> str:
    return label.partition(" every=")[0]


CELLS = tuple(
    Task(
        f"gpt_{SIZE}_{link}", SERIES, CONFIG, PARTS, 3, SIZES[SIZE].parameters, partial(_trained), data=False,
        # With so few steps of warm-up nothing is calibrated: the first epoch's time would have the calibration's.
        shared=(f"data.batch_size={SIZES[SIZE].batch}", _bytes(1), f"data.parts={PARTS}", "train.warmup_steps=3",
                f"optimizer.warmup_epochs={0.05 * PARTS:g}", "engine.name=auto", "engine.workers=0"),
        settings=_LABELS, own=OWN, place=OwnCluster(link, HOSTS),
    )
    for link in LINKS
)  # fmt: skip


class Cell(NamedTuple):
    """What was measured of a method on a link, by seed where it is a tuple.

    steps      seconds of a mean step, by seed that did not diverge
    predicted  seconds of a step by the cost model, None where it does not say
    nbytes     bytes of a step on the interface of rank 0's host
    to_target  seconds until the target; infinite where a seed did not reach it, or there is no target
    """

    method: MethodRuns
    steps: tuple[float, ...]
    predicted: float | None
    nbytes: float
    to_target: tuple[float, ...]

    @property
    def step(self) -> float:
        """Seconds of a mean step; infinite where every seed diverged."""
        return statistics.mean(self.steps) if self.steps else math.inf

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured."""
        return None if self.predicted is None else self.predicted / self.step - 1

    @property
    def reached(self) -> bool:
        """Whether every seed reached the target."""
        return max(self.to_target) < math.inf


def page(folder: Path, task: Task) -> Page | None:
    """The cells of a link; None where nothing has run."""
    machine = machine_of(folder.parent)
    cells, target = cells_of(folder, task, machine)
    if not cells:
        return None
    dense = _dense(cells)
    run = cells[0].method.runs[0]
    link = _link(task)
    rows = [_row(each, dense) for each in cells]
    goal = "There is no target without a loss of dense training."
    if target is not None:
        goal = f"The target is a test loss of {target:.4f} nats a byte, {100 * MARGIN:g} % above dense training's mean."
    text = [
        f"# Time to a loss on links of {link}",
        "",
        f"A GPT of {run.record['parameters']:,} parameters, {STEPS} steps of {SIZES[SIZE].per_step:,} bytes "
        f"({LONGER} times as many where `tokens={LONGER}x` stands), "
        f"{tokens(run for each in cells for run in each.method.runs)} tokens a parameter, {HOSTS} emulated hosts of "
        f"one {run.machine}. "
        f"{goal} A loss is read on a straight line between {PARTS} evaluations. Times are of training, without "
        "evaluations; in brackets the interval of 95 % over seeds. `predicted` is the same computing with the exchange "
        f"that the cost model prices, headers taking {100 * (1 - PAYLOAD):.1f} % of a link{_constants(task, machine)}. "
        "Bytes are those that rank 0's interface counted. After dense training's time a faster method has its final "
        "loss, and a slower one the loss of an unfinished run. Every method has the rate that its search "
        f"found, local steps the rate of rounds of {ROUND} steps. {_same_ratio(cells, link)} Made by `wirebench "
        f"study accuracy run`, which runs `{run.note['launch']}` and the like.",
        "",
        *table(
            ("method", "seeds", "tokens a parameter", "ms a step", "predicted", "kB a step", "test loss",
             "s to the target", "over dense", "loss after dense's time"),
            rows,
        ),
        *errors_of(cells),
        *missing(task, [each.method for each in cells]),
        *trust.note({each.method.label: each.method.runs for each in cells}, REPEATS),
    ]  # fmt: skip
    return Page(folder, "\n".join(text))


def machine_of(folder: Path) -> Constants:
    """What the first link's cells say of the machine; folder: of all links."""
    task = CELLS[0]
    methods = methods_in(folder / task.name, task)
    return constants([found for each in methods for run in each.runs if (found := priced(run, _link(task)))])


def cells_of(folder: Path, task: Task, machine: Constants) -> tuple[list[Cell], float | None]:
    """The cells of a link, dense training first, then by their time; and the target's loss, None without dense."""
    methods = methods_in(folder, task)
    dense = losses(dense_of(methods))
    target = (1 + MARGIN) * statistics.mean(dense) if dense else None
    cells = [_cell(each, target, _link(task), machine) for each in methods]
    order = [(each.method.label != DENSE, statistics.mean(each.to_target), each.step) for each in cells]
    return [cell for _, cell in sorted(zip(order, cells, strict=True), key=lambda each: each[0])], target


def _dense(cells: Sequence[Cell]) -> Cell | None:
    return next((each for each in cells if each.method.label == DENSE), None)


def _cell(method: MethodRuns, target: float | None, link: str, machine: Constants) -> Cell:
    known = [found for run in method.runs if (found := priced(run, link))]
    return Cell(
        method,
        tuple(seconds_of(run)[-1] / run.record["steps_done"] for run in method.runs if not run.diverged),
        statistics.mean(each.seconds(machine) for each in known) if known else None,
        statistics.mean(method.each(lambda run: run.has("bytes_per_step", "nic")) or [math.nan]),
        tuple(_first_time(run, target) for run in method.runs),
    )


def _points(run: NotedRun) -> list[tuple[float, float]]:
    """(seconds, test loss) after each epoch."""
    tested = zip(seconds_of(run), history(run), strict=False)
    return [(at, entry["test_loss"]) for at, entry in tested if entry.get("test_loss") is not None]


def _first_time(run: NotedRun, target: float | None) -> float:
    """Seconds until the loss is first at most `target`, on a straight line between evaluations; infinite: never."""
    if target is None:
        return math.inf
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
    time = "-"
    if dense is not None:
        some = f"{len(reached)} of {len(method.runs)} seeds"
        time = estimate.mean(reached).words("{:.1f}", "{:.1f}") if cell.reached else some
    over = "-"
    if dense is not None and cell is not dense and cell.reached and dense.reached:
        over = estimate.ratio_of_means(dense.to_target, reached).words()
    after = "-"
    if dense is not None and dense.step < math.inf:
        then = [_loss_at(run, STEPS * dense.step) for run in method.runs if not run.diverged]
        if len(then) == len(method.runs) and max(then) < math.inf:
            after = f"{statistics.mean(then):.4f}"
    step = "-" if cell.step == math.inf else f"{1e3 * cell.step:.1f}"
    predicted = "-" if cell.predicted is None else f"{1e3 * cell.predicted:.1f} ({100 * (cell.error or 0.0):+.0f} %)"
    sent = "-" if math.isnan(cell.nbytes) else f"{cell.nbytes / 1e3:.1f}"
    return [
        method.title, str(len(method.runs)), tokens(method.runs), step, predicted, sent, spread(losses(method)), time,
        over, after,
    ]  # fmt: skip


def _constants(task: Task, machine: Constants) -> str:
    """What the prices know of the machine."""
    if not machine.fitted:
        return ""
    here = "these cells" if task is CELLS[0] else f"the cells of {_link(CELLS[0])} links"
    return (
        f", and with what messages cost the cores that play all hosts, and {100 * machine.waiting:.0f} % of the "
        f"computing for which ranks wait for the last one, as {here} say"
    )


def errors_of(cells: Sequence[Cell]) -> list[str]:
    """A line about the predictions: their errors, and the order of methods, also of pairs that seeds tell apart."""
    known = [each for each in cells if each.error is not None]
    errors = [abs(each.error or 0.0) for each in known]
    if len(errors) < 2:
        return []
    tau = tau_of([each.step for each in known], [each.predicted or 0.0 for each in known])
    mean, worst = 100 * statistics.mean(errors), 100 * max(errors)
    text = f"Predicted steps: mean error {mean:.1f} %, worst {worst:.0f} %; Kendall's tau of the order {tau:.2f}."
    right = [_in_order(one, other) for one, other in combinations(known, 2) if _told_apart(one, other)]
    if right:
        text += (
            f" Seeds tell {len(right)} of {math.comb(len(known), 2)} pairs of methods apart (Welch, 5 %); of these "
            f"{sum(right)} are predicted in their order, a tau of {2 * statistics.mean(right) - 1:.2f}."
        )
    return [text, ""]


def _told_apart(one: Cell, other: Cell) -> bool:
    """Whether the steps of one take longer than the other's, by a test over seeds."""
    found = compare(one.steps, other.steps, 0.0)
    return found is not None and found.differs is not None and found.differs < LEVEL


def _in_order(one: Cell, other: Cell) -> bool:
    """Whether the slower of both is predicted to be slower."""
    return (one.step - other.step) * ((one.predicted or 0.0) - (other.predicted or 0.0)) > 0


def _same_ratio(cells: Sequence[Cell], link: str) -> str:
    """At which link a named job has the same ratio of dense exchange to computing; "" without a dense cell."""
    dense = _dense(cells)
    if dense is None:
        return ""
    computing = statistics.mean(passes_seconds(run) for run in dense.method.runs)
    share = 2 * (HOSTS - 1) / HOSTS
    ratio = share * 32 * SIZES[SIZE].parameters / parse_rate(link) / computing
    theirs = 6 * NAMED_PARAMETERS * NAMED_TOKENS / NAMED_FLOPS
    gbit = share * 32 * NAMED_PARAMETERS / (ratio * theirs) / 1e9
    return (
        f"A ring's dense exchange takes {ratio:.2g} times a pass's computing here. The same ratio has GPT-2 of 124M on "
        f"A100s at 40 % of their peak, {NAMED_TOKENS:,} tokens a worker, with links of {gbit:.0f} Gbit/s."
    )


def summary(out: Path) -> Page | None:
    """By method and link how much sooner than dense training the target is reached; None where nothing has run."""
    machine = machine_of(out / SERIES)
    there = [(task, cells_of(out / task.folder, task, machine)[0]) for task in CELLS]
    known = sorted(((task, cells) for task, cells in there if cells), key=lambda each: _gbit(each[0]))
    if not known:
        return None
    by_link = [(task, {each.method.label: each for each in cells}) for task, cells in known]
    labels = [label for label in _LABELS if any(label in cells for _, cells in by_link)]
    rows, simulated = (
        [[label, *(of(cells, label) for _, cells in by_link)] for label in labels if label != DENSE]
        for of in (_gain, _simulated)
    )
    runs = [run for _, cells in known for each in cells for run in each.method.runs]
    figure = _figure(by_link, labels, provenance_of(runs))
    heads = [_link(task) for task, _ in by_link]
    without = [_link(task) for task, cells in there if not cells]
    text = [
        "# The measured map: how much sooner a loss is reached",
        "",
        f"Dense training's seconds to the target over the method's, on {HOSTS} emulated hosts, "
        f"{tokens(runs)} tokens a parameter; in brackets the interval "
        "of 95 % over seeds. The tables of the links have targets, losses, bytes and steps.",
        "",
        *table(("method", *heads), rows),
        *(["![gains](gains.svg)", ""] if figure is not None else []),
        "The same by simulated exchanges: each step takes its measured computing and the exchange that the cost model "
        "says, and as many steps lead to the target as were measured. In brackets how far the factor is off.",
        "",
        *table(("method", *heads), simulated),
        *(f"{_link(task)}: {said}\n" for task, cells in known if (said := _same_ratio(cells, _link(task)))),
        *([f"Links without a run: {', '.join(without)}.", ""] if without else []),
    ]  # fmt: skip
    return Page(out / SERIES, "\n".join(text), {"gains.svg": figure})


def _link(task: Task) -> str:
    assert task.place is not None
    return task.place.link


def _gbit(task: Task) -> float:
    return parse_rate(_link(task)) / 1e9


def _gain(cells: Mapping[str, Cell], label: str) -> str:
    cell, dense = cells.get(label), cells.get(DENSE)
    if cell is None or dense is None:
        return "-"
    if not (cell.reached and dense.reached):
        return "not reached"
    return estimate.ratio_of_means(dense.to_target, cell.to_target).words()


def _simulated(cells: Mapping[str, Cell], label: str) -> str:
    """The gain by predicted steps, and its error against the measured gain; "-" without both."""
    cell, dense = cells.get(label), cells.get(DENSE)
    if cell is None or dense is None or not (cell.reached and dense.reached):
        return "-"
    if cell.error is None or dense.error is None:
        return "-"
    gain = statistics.mean(dense.to_target) / statistics.mean(cell.to_target)
    share = (1 + dense.error) / (1 + cell.error)
    return f"{share * gain:.2f}x ({100 * (share - 1):+.0f} %)"


def _figure(by_link: Sequence[tuple[Task, Mapping[str, Cell]]], labels: Sequence[str], where: str) -> Figure | None:
    """A curve for each method that reached the target on two links, over the links' rate; None without any."""
    lines = []
    for label in labels:
        points = []
        for task, cells in by_link:
            cell, dense = cells.get(label), cells.get(DENSE)
            if cell and dense and cell.reached and dense.reached:
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
