"""What a step takes on each network: dense training for as long as a method's run, and who is on the Pareto front."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from papers import trust
from papers.accuracy.curve import Pace, pace, passes_seconds, steps_of
from papers.accuracy.modern import DENSE, LARGER, OTHER_DENSE
from papers.accuracy.rows import MethodRuns, against, bytes_of, losses, multiplicity, runs_of
from papers.significance import Comparison, corrected
from wirebench.planner.dense import ALIKE, BestDense, DenseRuns, best_dense
from wirebench.record.notes import NotedRun
from wirebench.utils.markdown import table

RATES = (0.1, 1.0, 10.0, 100.0)
"""Gbit/s of every worker's link."""
NOTHING: Mapping[str, NotedRun] = {}


class Yardstick(NamedTuple):
    """The runs that give the times.

    quiet   folders of the runs that keep the rule of load; the times of others are refused
    timed   by label the run that was alone on the machine, for those that have one (alone.py)
    runs    whose forward and backward passes count: those that were alone; without any, the quiet ones
    passes  their median seconds, which count for all methods; 0 without any
    """

    quiet: frozenset[Path]
    timed: Mapping[str, NotedRun]
    runs: Sequence[NotedRun]
    passes: float

    def pace(self, run: NotedRun, gbit: float) -> Pace | None:
        """Pace of a run at this link rate; None where it has no accepted time."""
        computes = self.timed.get(run.note["label"], run)
        return pace(run, gbit, self.passes, computes) if computes is not run or run.folder in self.quiet else None

    @property
    def words(self) -> str:
        """Text: whose passes count, their range, and how busy the machine was with other work."""
        if not self.runs:
            return "no run keeps the rule of load"
        each = sorted(1e3 * passes_seconds(run) for run in self.runs)
        of = f"the median of {len(each)} runs, {each[0]:.0f} to {each[-1]:.0f}" if len(each) > 1 else "of one run"
        busy = max((load["others_cores"] for run in self.runs for load in run.has("load") or ()), default=0.0)
        cores = max((load["cores"] for run in self.runs for load in run.has("load") or ()), default=0)
        return f"{of}, beside which at most {busy:.2f} of {cores} cores were busy with something else"


def yardstick(methods: Sequence[MethodRuns], timed: Mapping[str, NotedRun] = NOTHING) -> Yardstick:
    """Yardstick from the runs of a task, and from the runs that were alone."""
    quiet = [run for run in runs_of(methods) if trust.is_quiet(run)]
    alone = {run.folder: run for run in timed.values()}
    runs = [run for run in alone.values() or quiet if passes_seconds(run)]
    passes = statistics.median(map(passes_seconds, runs)) if runs else 0.0
    return Yardstick(frozenset(run.folder for run in quiet), timed, runs, passes)


def sides(methods: Sequence[MethodRuns]) -> tuple[list[MethodRuns], list[MethodRuns]]:
    """Dense training in all its forms, and everything else."""
    dense = [method for method in methods if method.label in (DENSE, *OTHER_DENSE)]
    return dense, [method for method in methods if method not in dense]


def mean_pace(method: MethodRuns, gbit: float, by: Yardstick) -> Pace | None:
    """The mean of the paces of its runs that have one; None without any."""
    paces = [by.pace(run, gbit) for run in method.runs]
    known = [each for each in paces if each is not None]
    return Pace(*(statistics.mean(part) for part in zip(*known, strict=True))) if known else None


def run_seconds(method: MethodRuns, gbit: float, by: Yardstick, overlapped: bool = False) -> float | None:
    """Seconds of a whole run; overlapped: its backward pass hides each exchange of gradients as far as it lasts."""
    found = mean_pace(method, gbit, by)
    return None if found is None else (found.at_best if overlapped else found.seconds) * steps_of(method.runs[0])


def steps_table(methods: Sequence[MethodRuns], by: Yardstick) -> list[str]:
    """Milliseconds of a mean step by the link rate."""
    paces_of = [(method, [mean_pace(method, rate, by) for rate in RATES]) for method in methods]
    known = [each for each in paces_of if any(each[1])]
    untimed = [run for run in runs_of(methods) if run.note["label"] not in by.timed]
    left_out = [run.folder.name for run in untimed if run.folder not in by.quiet]
    refused = [f"Refused are the times of {', '.join(left_out)}, which break the rule of load.", ""] if left_out else []
    return [
        "Milliseconds of a step without overlap, and of its exchange after the backward pass; `at best`: were each "
        "exchange of gradients overlapped with its backward pass, max(0, exchange - backward):",
        "",
        *table(
            ("method", "computing", *(f"{rate:g} Gbit/s" for rate in RATES)),
            [_paces(method, paces) for method, paces in known],
        ),
        f"Measured computing, simulated exchange: a worker's forward and backward pass take {1e3 * by.passes:.0f} ms, "
        f"{by.words}; its update and its compressor take what they took in a short run alone on the machine, or, "
        "without one, in the whole run. Requests cost what the cost model says with one worker a machine. An outer "
        "step overlaps its exchange with local steps if it has a delay, and else with nothing.",
        "",
        *refused,
    ]


def _paces(method: MethodRuns, paces: Sequence[Pace | None]) -> list[str]:
    computing = next((each.computing for each in paces if each), None)
    return [method.title, "-" if computing is None else f"{1e3 * computing:.1f}", *map(_pace, paces)]


def _pace(each: Pace | None) -> str:
    if each is None:
        return "-"
    best = f", at best {1e3 * each.least:.1f}" if each.least < each.exposed else ""
    return f"{1e3 * each.seconds:.1f} ({1e3 * each.exposed:.1f}{best})"


def equal_time(methods: Sequence[MethodRuns], by: Yardstick) -> list[str]:
    """Each method's final loss beside dense training's for as long, by the rate; with and without overlap."""
    dense, others = sides(methods)
    lines: list[str] = []
    for overlapped, head in (
        (False, "Without overlap"),
        (True, "With each exchange of gradients overlapped with its backward pass"),
    ):
        every = [(each, rate) for each in others for rate in RATES]
        besides = corrected_all([beside_dense(each, dense, rate, by, overlapped) for each, rate in every])
        cells: dict[str, list[Beside | None]] = {}
        for (method, _), beside in zip(every, besides, strict=True):
            cells.setdefault(method.title, []).append(beside)
        known = [each for each in besides if each is not None]
        if not any(each.compared for each in known):
            continue
        rows = [[name, *("-" if each is None else each.words for each in those)] for name, those in cells.items()]
        lines += [f"{head}:", "", *table(("method", *(f"{rate:g} Gbit/s" for rate in RATES)), rows)]
        lines += [multiplicity(each.compared for each in known), ""]
    if not lines:
        needs = "three seeds, and a time, of both"
        return [f"Nothing is compared with dense training for the same time: that takes {needs}.", ""]
    return [
        "A method's test loss over the loss of the best dense training that took no longer. Dense training ran on all "
        "tokens, a half, a quarter and an eighth, each with its own schedule. Where the method takes as long as the "
        "run on all tokens, it is compared with that run. Else it is compared with a point on the line between two "
        "runs, by the logarithm of time, with the spread of the wider end. A dense run in larger batches counts where "
        f"it is better. {100 * ALIKE:g} % of a time are no difference. "
        "A method that takes less time than any dense run is compared with the shortest. Exchanges of weights overlap "
        "with local steps only where they have a delay, and a method that clips a worker's whole gradient before it "
        "sends cannot overlap. A method's computing was measured once: times have no spread.",
        "",
        *lines,
    ]


class Beside(NamedTuple):
    """A method's loss and dense training's for as long.

    ratio     of the means
    name      which dense training
    compared  whether they differ; None where one side has no seeds
    within    whether the method had the time of the shortest dense run; false: the ratio is an upper bound
    """

    ratio: float
    name: str
    compared: Comparison | None
    within: bool

    @property
    def decides(self) -> bool:
        """False where the method is not better than a dense run that took longer."""
        return self.within or self.compared is None or self.compared.said == "better"

    @property
    def words(self) -> str:
        """The comparison as a table cell."""
        told = "" if self.compared is None or not self.decides else f", {self.compared.words}"
        return f"{self.ratio:.3f}x {self.name}{told}"


def beside_dense(
    method: MethodRuns, dense: Sequence[MethodRuns], rate: float, by: Yardstick, overlapped: bool
) -> Beside | None:
    """The method beside the best dense training for as long at this link rate; None where a time or a loss lacks.

    dense  all forms of it
    """
    took, mine = run_seconds(method, rate, by, overlapped), losses(method)
    timed = [(seconds, each) for each in dense if (seconds := run_seconds(each, rate, by, overlapped)) and losses(each)]
    if took is None or not mine:
        return None
    best = _best_dense(took, timed)
    if best is None:
        return None
    compared = against(mine, best.losses)
    return Beside(statistics.mean(mine) / statistics.mean(best.losses), best.name, compared, best.within)


def _best_dense(took: float, timed: Sequence[tuple[float, MethodRuns]]) -> BestDense | None:
    """The best of these forms of dense training, given the seconds of their runs; None where a time or a loss lacks."""
    return best_dense(took, [(seconds, dense_runs(each)) for seconds, each in timed])


def dense_runs(method: MethodRuns) -> DenseRuns:
    """A form of dense training as the planner has it."""
    run = method.runs[0]
    several = run.has("config", "train", "accumulation") or 1
    kind = method.label in LARGER, method.label == DENSE
    return DenseRuns(method.label, steps_of(run), several, tuple(losses(method)), *kind)


def corrected_all(found: Sequence[Beside | None]) -> list[Beside | None]:
    """The comparisons, corrected as one family."""
    family = corrected([None if each is None else each.compared for each in found])
    return [None if each is None else each._replace(compared=one) for each, one in zip(found, family, strict=True)]


Cost = Callable[[MethodRuns], float | None]


def fronts(methods: Sequence[MethodRuns], by: Yardstick) -> list[str]:
    """The table, by the cost of whole runs. A method that is not shown to be better than all cheaper ones is marked.

    methods  all of a task, dense training on fewer tokens, too
    """

    def seconds(rate: float, overlapped: bool) -> Cost:
        return lambda method: run_seconds(method, rate, by, overlapped)

    costs: dict[str, Cost] = {"bytes": bytes_of}
    for rate in RATES:
        costs[f"time at {rate:g} Gbit/s"] = seconds(rate, overlapped=False)
        costs[f"time at {rate:g} Gbit/s, overlapped"] = seconds(rate, overlapped=True)
    every = {name: marked(methods, cost, 0.0 if cost is bytes_of else ALIKE) for name, cost in costs.items()}
    found = {name: each for name, each in every.items() if each.known > 1}
    return [
        "The Pareto front: no method reaches a smaller mean loss at a lower cost of the whole run, the cheapest first. "
        "`near`: costs more than a method on the front, and its mean loss is no smaller, but its seeds do not tell the "
        f"two apart. Times that differ by {100 * ALIKE:g} % or less are the same cost. `overlapped`: each exchange of "
        "gradients with its backward pass. `of`: how many methods have such a cost; a method has a time if one of "
        "its runs keeps the rule of load:",
        "",
        *table(
            ("cost", "of", "methods", "near"),
            [[name, f"{each.known} of {len(methods)}", each.words, each.near] for name, each in found.items()],
        ),
        f"{sum(one is not None and one.p is not None for each in found.values() for one in each.compared)} "
        "comparisons, those of a line together at 5 % (Holm).",
        "",
    ]


class Marked(NamedTuple):
    """A front in words, who is near it, the comparisons that this rests on, and how many methods have a cost."""

    words: str
    near: str
    compared: list[Comparison | None]
    known: int


def marked(methods: Sequence[MethodRuns], cost: Cost, alike: float = 0.0) -> Marked:
    """The front of these methods by this cost; `alike`: the share by which costs do not differ."""
    known = {method.label: losses(method) for method in methods}
    points = {
        method.label: (price, statistics.mean(known[method.label]))
        for method in methods
        if known[method.label] and (price := cost(method)) is not None
    }
    names = front(points, alike)
    pairs = [(name, before) for place, name in enumerate(names) for before in names[:place]]
    # Of those on the front that cost no more the last one has the least loss.
    behind = {
        name: [each for each in names if (1 - alike) * points[each][0] <= price][-1]
        for name, (price, _) in points.items()
        if name not in names
    }
    pairs += [(ahead, name) for name, ahead in behind.items()]
    every = corrected([against(known[ours], known[theirs], margin=0.0) for ours, theirs in pairs])
    compared = dict(zip(pairs, every, strict=True))
    cheaper = {name: {each: compared[name, each] for each in names[:place]} for place, name in enumerate(names)}
    words = [name + _doubt([each for each in those.items() if not _better(each[1])]) for name, those in cheaper.items()]
    beaten = {name: compared[ahead, name] for name, ahead in behind.items()}
    near = [name + _doubt([("", one)], "") for name, one in beaten.items() if not _better(one)]
    return Marked(", ".join(words) or "-", ", ".join(near) or "-", every, len(points))


def _better(one: Comparison | None) -> bool:
    return one is not None and one.said == "better"


def _doubt(those: Sequence[tuple[str, Comparison | None]], alike: str = " (not told apart from {})") -> str:
    """What is behind a name that is not shown to be better than these; "" without any."""
    if any(one is None or one.p is None for _, one in those):
        return " (too few seeds)"
    return alike.format(", ".join(name for name, _ in those)) if those else ""


def front(points: Mapping[str, tuple[float, float]], alike: float = 0.0) -> list[str]:
    """The names on the Pareto front: none on it has a smaller loss at a smaller or equal cost; cheapest first.

    alike  the share by which a cost has to be smaller, to be smaller at all
    """
    on: list[str] = []
    least = float("inf")
    for name, (price, _) in sorted(points.items(), key=lambda item: (item[1][::-1], item[0])):
        if price < (1 - alike) * least:
            on.insert(0, name)
            least = price
    return on
