"""table.md of a task: losses for the same tokens and for the same time, bytes, times, and who is on the front."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from suite.studies import trust
from suite.studies.convergence.network import quietest
from suite.studies.convergence.rows import Method, history, shared, wire_bytes
from suite.studies.findings import Finding, claims_table
from suite.studies.notes import NotedRun
from suite.studies.significance import compare
from suite.studies.today.curve import Pace, loss_after, pace, steps_of
from suite.studies.today.tasks import DENSE
from wirebench.utils.markdown import table

RATES = (0.1, 1.0, 10.0, 100.0)
"""Gbit/s of every worker's link."""
PART = 4
"""A method has the time in which dense training makes one in so many of its steps."""
MARGIN = 0.01
"""Of a loss, that does not matter."""


def document(task: str, methods: Sequence[Method], found: Sequence[Finding]) -> str:
    """The whole file."""
    lines = [f"# The methods of today: {task}", "", *_setting(methods)]
    dense = next((method for method in methods if method.label == DENSE), None)
    lines += table(
        ("method", "seeds", "test loss", "over dense", "than dense", "metric", "bytes of a run", "fewer bytes", "rate"),
        [_cells(method, dense) for method in methods],
    )
    lines += trust.note({method.label: method.runs for method in methods}, "seeds")
    lines += claims_table(found)
    passes = quietest(runs_of(methods))
    lines += [*_times(methods, passes), *_equal_time(methods, dense, passes), *_fronts(methods, passes)]
    figures = ["![loss by bytes](bytes.png)", "", "![loss by time](seconds.png)", ""]
    return "\n".join([*lines, *figures])


def losses(method: Method) -> list[float]:
    """Final test losses; none where a seed diverged."""
    return [] if method.ends else method.each(lambda run: run.has("final", "loss"))


def bytes_of(method: Method) -> float | None:
    """Bytes that a worker sends in a run, mean over seeds."""
    sent = method.each(lambda run: wire_bytes(history(run)[-1]) if history(run) and not run.diverged else None)
    return statistics.mean(sent) if sent else None


def mean_pace(method: Method, gbit: float, passes: float) -> Pace | None:
    """The mean of its runs' paces; None where one has none."""
    paces = [pace(run, gbit, passes) for run in method.runs]
    known = [each for each in paces if each is not None]
    if len(known) < len(paces) or not known:
        return None
    return Pace(*(statistics.mean(part) for part in zip(*known, strict=True)))


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names on the Pareto front: nobody has both a smaller cost and a smaller loss; cheapest first."""
    on: list[str] = []
    best = float("inf")
    for name, (_, loss) in sorted(points.items(), key=lambda item: (item[1], item[0])):
        if loss < best:
            on.append(name)
            best = loss
    return on


def _setting(methods: Sequence[Method]) -> list[str]:
    usual, machines = shared(methods), dict.fromkeys(run.machine for run in runs_of(methods))
    steps = max(map(steps_of, runs_of(methods)))
    return [
        f"{usual.get('model')} with {methods[0].runs[0].record['parameters']:,} parameters on {usual.get('data')}, "
        f"{usual.get('workers')} virtual workers of {usual.get('batch size')} samples, {steps} steps. The loss is that "
        "of the test set at the end of the run, in nats; after its sign, the standard deviation over seeds. Bytes are "
        "those that a worker sends, and a rate is the largest of a worker's optimizer in the run. Made by `wirebench "
        f"study today run` on {', '.join(machines)}; {methods[0].label} by "
        f"`{methods[0].runs[0].note['launch']}`.",
        "",
    ]


def _cells(method: Method, dense: Method | None) -> list[str]:
    mine, sent, rates = losses(method), bytes_of(method), method.each(lambda run: run.has("config", "optimizer", "lr"))
    theirs, base = (losses(dense), bytes_of(dense)) if dense else ([], None)
    against = None
    if mine and theirs and dense is not method:
        margin = MARGIN * statistics.mean(theirs)
        against = compare([-loss for loss in mine], [-loss for loss in theirs], margin)
    return [
        method.title,
        str(len(method.runs)),
        _spread(mine),
        "-" if not (mine and theirs) else f"{statistics.mean(mine) / statistics.mean(theirs):.3f}x",
        "-" if against is None else against.words,
        _metric(method),
        "-" if sent is None else f"{sent / 1e6:.4g} MB",
        "-" if not (sent and base) else f"{base / sent:.3g}x",
        " or ".join(f"{rate:g}" for rate in dict.fromkeys(rates)) or "-",
    ]


def _metric(method: Method) -> str:
    bits = method.each(lambda run: run.has("final", "bits_per_byte"))
    if bits:
        return f"{statistics.mean(bits):.3f} bits per byte"
    return f"{100 * statistics.mean(method.top1):.1f} % top-1" if method.top1 else "-"


def _times(methods: Sequence[Method], passes: float) -> list[str]:
    """Milliseconds of a mean step by the link rate."""
    return [
        "Milliseconds of a step, and how much of its exchange nothing hides:",
        "",
        *table(
            ("method", "computing", *(f"{rate:g} Gbit/s" for rate in RATES)),
            [_paces(method, [mean_pace(method, rate, passes) for rate in RATES]) for method in methods],
        ),
        f"Measured computing, simulated exchange: a worker's passes take what the quietest run's took, "
        f"{1e3 * passes:.0f} ms, and its compressor what it took beside them; requests cost what the cost model says "
        "with one worker a machine. Only an outer step with a delay overlaps its exchange with computing.",
        "",
    ]


def _paces(method: Method, paces: Sequence[Pace | None]) -> list[str]:
    computing = paces[0].computing if paces and paces[0] else None
    return [
        method.title,
        "-" if computing is None else f"{1e3 * computing:.1f}",
        *("-" if each is None else f"{1e3 * each.seconds:.1f} ({1e3 * each.exposed:.1f})" for each in paces),
    ]


def _equal_time(methods: Sequence[Method], dense: Method | None, passes: float) -> list[str]:
    """The training loss after the same time, by the link rate."""
    rows = {method.title: [_loss_in_time(method, dense, rate, passes) for rate in RATES] for method in methods}
    if not any(cells != ["-"] * len(RATES) for cells in rows.values()):
        return []
    return [
        "Training loss, and the share of the run that is done, in the time in which dense training makes one in "
        f"{PART} of its steps:",
        "",
        *table(("method", *(f"{rate:g} Gbit/s" for rate in RATES)), [[name, *cells] for name, cells in rows.items()]),
        "The rate of learning is that of the whole run: a run that gets further has also cooled down further.",
        "",
    ]


def _loss_in_time(method: Method, dense: Method | None, rate: float, passes: float) -> str:
    theirs = mean_pace(dense, rate, passes) if dense else None
    mine = mean_pace(method, rate, passes)
    if dense is None or theirs is None or mine is None or method.ends:
        return "-"
    whole = steps_of(dense.runs[0])
    steps = min(whole / PART * theirs.seconds / mine.seconds, whole)
    known = [loss_after(run.note["curve"], steps) for run in method.runs]
    there = [loss for loss in known if loss is not None]
    return f"{statistics.mean(there):.3f} ({100 * steps / whole:.0f} %)" if len(there) == len(known) else "-"


def _fronts(methods: Sequence[Method], passes: float) -> list[str]:
    """Who is on the Pareto front of the final loss, by bytes and by time on each network."""

    def named(cost: Callable[[Method], float | None]) -> str:
        points = {}
        for method in methods:
            mine, price = losses(method), cost(method)
            if mine and price is not None:
                points[method.label] = (price, statistics.mean(mine))
        return ", ".join(front(points)) or "-"

    def seconds(rate: float) -> Callable[[Method], float | None]:
        def of(method: Method) -> float | None:
            found = mean_pace(method, rate, passes)
            return None if found is None else found.seconds

        return of

    rows = [["bytes", named(bytes_of)], *([f"time at {rate:g} Gbit/s", named(seconds(rate))] for rate in RATES)]
    return ["Nobody reaches a smaller mean loss for less, cheapest first:", "", *table(("cost", "methods"), rows)]


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.4f}"
    return mean if len(values) < 2 else f"{mean} +- {statistics.stdev(values):.4f}"


def runs_of(methods: Iterable[Method]) -> list[NotedRun]:
    """All runs."""
    return [run for method in methods for run in method.runs]
