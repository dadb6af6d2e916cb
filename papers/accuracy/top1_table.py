"""table.md of every compressor: accuracies with their tests, bytes, times on networks, and what options do."""

import re
import statistics
from collections.abc import Mapping, Sequence

from scipy import stats

from papers import lossless, trust
from papers.accuracy import cells
from papers.accuracy.curve import RATES, quietest, seconds_to
from papers.accuracy.rows import MethodRuns, dense_of, first_reaching, shared, target, wire_bytes
from papers.findings import Finding, claims_table
from papers.rows import spread, with_energy
from papers.significance import LEAST_RUNS, LEVEL, Comparison, compare, corrected
from wirebench.record.notes import NotedRun
from wirebench.utils.markdown import table

MARGIN = 0.5
"""Points of accuracy that do not matter."""
SKETCH_HEAD = ("method", "entries sent", "heavy of them", "heavy by chance", "recall", "sketch error")
LEAST_RANKED = 5
"""Methods of which a rank correlation is shown."""
OWN_MOMENTUM = "(m)"


def document(
    task: str, methods: Sequence[MethodRuns], found: Sequence[Finding], others: Mapping[str, Sequence[MethodRuns]]
) -> str:
    """The whole file."""
    dense = dense_of(methods)
    goal = target(methods)
    aim = "the goal" if goal is None else f"{100 * goal:.0f} %"
    lines = [f"# What every method does to the accuracy: {task}", "", *_setting(methods)]
    against = corrected(
        [compare(each.judged, dense.judged, MARGIN) if dense and dense is not each else None for each in methods]
    )
    rows = [_cells(method, dense, goal, compared) for method, compared in zip(methods, against, strict=True)]
    head, rows = with_energy(_head(aim), rows, methods)
    lines += [*table(head, [*rows, lossless.row(head, "fewer bytes than dense", "images")]), *lossless.note("images")]
    lines += trust.note({method.label: method.runs for method in methods}, "seeds")
    lines += [*_reading(methods), *claims_table(found), *contrasts(methods, MARGIN), *_ranks(methods, others)]
    lines += _networks(methods, goal, aim)
    curves = ["![accuracy against epochs](epochs.svg)", "", "![accuracy against bytes](bytes.svg)", ""]
    return "\n".join([*lines, *_sketches(methods), *curves])


def _head(aim: str) -> tuple[str, ...]:
    return (
        "method", "seeds", "top-1 %", "points to dense", "than dense", "best %", f"epochs to {aim}", f"bytes to {aim}",
        "bytes in all", "fewer bytes than dense", "compression error", "overlap with top-k", "warnings",
    )  # fmt: skip


def _setting(methods: Sequence[MethodRuns]) -> list[str]:
    """Return the lines about the setting that all runs share."""
    usual = shared(methods)
    pixels, width = usual.get("pixels") or 32, usual.get("width") or 16
    images = f"CIFAR-10 at {pixels} x {pixels} pixels (92 of the 60,000 images decoded from JPEG)"
    if usual.get("data") == "digits":
        images = "the digits that come with scikit-learn, at 8 x 8 pixels"
    density = f", density {usual['density']} of the methods that take one" if "density" in usual else ""
    return [
        f"ResNet-{usual.get('depth', '?')} with {width} filters in its first stage, on {images}, {usual['workers']} "
        f"virtual workers of {usual.get('batch size', '?')} images, {usual.get('epochs', '?')} epochs, "
        f"{usual.get('precision', '?')}, one-cycle rate up to {usual.get('learning rate', '?')}{density}. Accuracy is "
        "on the test set at the end of the run; after its sign, the standard deviation over seeds. Bytes are those "
        "that a worker sends, gathered and summed by ring where the paper names nothing else. "
        "`wirebench show` prints a record: its path is this folder's, with the method and the seed.",
        "",
        f"Made by `wirebench study accuracy run` on {_machines(methods)}; {methods[0].label} by "
        f"`{methods[0].runs[0].note['launch']}`.",
        "",
    ]


def _machines(methods: Sequence[MethodRuns]) -> str:
    """The first method's processor, and the processors of methods that ran on others."""
    by: dict[str, list[str]] = {}
    for method in methods:
        for run in method.runs:
            by.setdefault(str(run.has("environment", "cpu", "model")), []).append(method.label)
    usual, *rest = by
    return usual + "".join(f" ({', '.join(dict.fromkeys(by[each]))}: {each})" for each in rest)


def _cells(method: MethodRuns, dense: MethodRuns | None, goal: float | None, against: Comparison | None) -> list[str]:
    runs = method.runs
    percent = [100 * value for value in method.top1]
    reached = [entry for entry in (first_reaching(run, goal) for run in runs) if entry is not None]
    arrived = [count / 1e6 for count in map(wire_bytes, reached) if count is not None]
    return [
        method.title,
        str(len(runs)),
        spread(percent, 2),
        "-" if against is None else f"{against.difference:+.1f}",
        "-" if against is None else against.words,
        f"{100 * max(method.best):.1f}" if method.best else "-",
        _mean([entry["epoch"] + 1 for entry in reached], len(runs), "{:.1f}"),
        "-" if reached and not arrived else _mean(arrived, len(runs), "{:.4g} MB"),
        cells.sent(method),
        cells.fewer(method, dense),
        _average(method, "health/compression_error") + (f" {OWN_MOMENTUM}" if method.owns_momentum else ""),
        _average(method, "health/topk_overlap"),
        str(sum(len(run.record.get("warnings", [])) for run in runs) or "-"),
    ]


def _reading(methods: Sequence[MethodRuns]) -> list[str]:
    words = [
        f"Better and worse: one-sided Welch tests over seeds, at {100 * LEVEL:.0f} % for both sides. As good: two such "
        f"tests tell the difference apart from {MARGIN} points either way. Each p is that of one of all comparisons in "
        f"the table, by Holm: in one table of {1 / LEVEL:.0f} a method comes out better or worse by chance. Rows of "
        f"fewer than {LEAST_RUNS} seeds, or in which a seed diverged, are not judged.",
        "",
    ]
    if any(method.owns_momentum for method in methods):
        words += [
            f"{OWN_MOMENTUM}: this method applies the momentum itself. Its error is that of a sum of gradients, up to "
            "1 / (1 - momentum) times as large, against the gradient of the step: not to be compared with the others'.",
            "",
        ]
    return words


def _ranks(methods: Sequence[MethodRuns], others: Mapping[str, Sequence[MethodRuns]]) -> list[str]:
    """Whether another task puts the methods into the same order."""
    lines = []
    for task, theirs in others.items():
        known = {each.label: statistics.mean(each.judged) for each in theirs if len(each.judged) >= LEAST_RUNS}
        ours = {each.label: statistics.mean(each.judged) for each in methods if len(each.judged) >= LEAST_RUNS}
        both = [(ours[label], known[label]) for label in ours if label in known]
        if len(both) >= LEAST_RANKED:
            rank = stats.spearmanr(*zip(*both, strict=True))
            lines += [
                f"Of the {len(both)} methods that have {LEAST_RUNS} seeds here and in the task {task}, Spearman's rank "
                f"correlation of the mean accuracies is {rank.statistic:.2f} (p = {rank.pvalue:.2g}).",
                "",
            ]
    return lines


def _networks(methods: Sequence[MethodRuns], goal: float | None, aim: str) -> list[str]:
    """Seconds to the goal by the link rate."""
    passes = quietest(run for method in methods for run in method.runs)
    rows = [
        [method.title, *(_seconds([seconds_to(run, goal, rate, passes) for run in method.runs]) for rate in RATES)]
        for method in methods
    ]
    if not any(cell != "-" for _, *cells in rows for cell in cells):
        return []
    return [
        *table(("method", *(f"s to {aim} at {rate:g} Gbit/s" for rate in RATES)), rows),
        "Measured computing, simulated exchange. Every worker's forward and backward pass take what those of the "
        f"quietest run took, {1e3 * passes:.0f} ms a step, its update and compressor what they took beside these; "
        "where one worker chooses for all (`broadcast=indices`), it takes longer. Requests cost what the cost model "
        "says with one worker a machine; nothing overlaps. On a faster processor the exchange is a larger share."
        + _busy([run for method in methods for run in method.runs]),
        "",
    ]


def _busy(runs: Sequence[NotedRun]) -> str:
    """A sentence: how many of the runs were made on a machine that did other work, too; "" for none."""
    busy = sum(not trust.is_quiet(run) for run in runs)
    if not busy:
        return ""
    return (
        f" {busy} of the {len(runs)} runs break the rule `load` (docs/studies.md): their machine did something else, "
        "too, so that these times say roughly which method is sooner there, and no more."
    )


def _seconds(of_runs: Sequence[float | None]) -> str:
    values = [seconds for seconds in of_runs if seconds is not None]
    return f"{statistics.mean(values):.0f}" if len(values) == len(of_runs) else "-"


def _sketches(methods: Sequence[MethodRuns]) -> list[str]:
    """What the sketches showed of the sums, for the methods that measure it."""
    rows = [
        [method.title, *(_sketched(method, name, form) for name, form in _SKETCHED.items())]
        for method in methods
        if method.health("compressor/sketch_error")
    ]
    if not rows:
        return []
    return [
        *table(SKETCH_HEAD, rows),
        "Means over the steps that were measured, those of a dense warm-up left out. `heavy`: entries whose estimates "
        "reach HEAVYMIX's threshold; `heavy by chance`: as many reach it in a vector that has no such entry, by the "
        "noise of the sketch. `recall`: share of the sum's largest entries that were sent. `sketch error`: norm of the "
        "errors of the estimates over that of the sums; an estimate of 0 would have 1.",
        "",
    ]


_SKETCHED = {
    "chosen": "{:.0f}", "heavy": "{:.0f}", "heavy_by_chance": "{:.0f}", "recall": "{:.3f}", "sketch_error": "{:.2f}",
}  # fmt: skip


def _sketched(method: MethodRuns, name: str, form: str) -> str:
    """Some older records say what is heavy by chance of tables of which that is not known."""
    some = any(run.has("config", "compressor", "p1") for run in method.runs)
    return "-" if some and name == "heavy_by_chance" else _average(method, f"compressor/{name}", form)


def _average(method: MethodRuns, name: str, form: str = "{:.2f}") -> str:
    readings = method.health(name)
    return form.format(statistics.mean(readings)) if readings else "-"


def _mean(values: Sequence[float], runs: int, form: str) -> str:
    """Mean over the runs that got there, if all did; else how many."""
    if not values:
        return "not reached"
    return form.format(statistics.mean(values)) + ("" if len(values) == runs else f" ({len(values)} of {runs} runs)")


CONTRAST_HEAD = ("with", "top-1 %", "beside", "top-1 %", "points", "than that", "bytes, times")


def contrasts(methods: Sequence[MethodRuns], margin: float) -> list[str]:
    """The table of all rows whose label is another row's and options; nothing where there are none.

    margin  points of accuracy that do not matter
    """
    known = {method.label: method for method in methods}
    pairs = [(method, known[name]) for method in methods if (name := base(method.label)) in known]
    family = corrected([compare(method.judged, other.judged, margin) for method, other in pairs])
    rows = [_contrast(*pair, against) for pair, against in zip(pairs, family, strict=True)]
    return ["What a setting changes:", "", *table(CONTRAST_HEAD, rows)] if rows else []


def base(label: str) -> str | None:
    """The method of a label that ends in `key=value`, once or several times; None for another label."""
    name = re.sub(r"( \S+=\S*)+$", "", label)
    return None if name == label else name


def _contrast(method: MethodRuns, other: MethodRuns, against: Comparison | None) -> list[str]:
    ours, theirs = method.judged, other.judged
    sent = [statistics.mean(each.wire_bytes) if each.wire_bytes else None for each in (method, other)]
    return [
        method.title,
        f"{statistics.mean(ours):.2f}" if ours else "-",
        other.title,
        f"{statistics.mean(theirs):.2f}" if theirs else "-",
        "-" if against is None else f"{against.difference:+.1f}",
        "-" if against is None else against.words,
        f"{sent[0] / sent[1]:.2f}" if sent[0] and sent[1] else "-",
    ]
