"""table.md of the trainings: accuracy, bytes, and what the sketches found."""

import statistics
from collections.abc import Sequence

from suite.studies.convergence.rows import DENSE, TARGET, Method, first_reaching, shared, wire_bytes
from wirebench.utils.markdown import table

HEAD = (
    "method", "seeds", "top-1 %", "less than dense", "best %", f"epochs to {100 * TARGET:.0f} %",
    f"bytes to {100 * TARGET:.0f} %", "bytes in all", "less bytes than dense", "compression error",
    "overlap with top-k", "warnings",
)  # fmt: skip
SKETCH_HEAD = ("method", "entries sent", "heavy of them", "recall", "sketch error")
OWN_MOMENTUM = "(m)"


def document(methods: Sequence[Method]) -> str:
    """The whole file."""
    dense = next((method for method in methods if method.label == DENSE), None)
    lines = ["# What every method does to the accuracy", "", *_setting(methods)]
    lines += table(HEAD, [_cells(method, dense) for method in methods])
    lines += [*_momentum_note(methods), *_sketches(methods)]
    lines += ["![accuracy against epochs](epochs.png)", "", "![accuracy against bytes](bytes.png)", ""]
    return "\n".join(lines)


def _setting(methods: Sequence[Method]) -> list[str]:
    """What all runs share."""
    first, usual = methods[0].runs[0], shared(methods)
    density = f", density {usual['density']} of the methods that take one" if "density" in usual else ""
    return [
        f"ResNet-{usual.get('depth', '?')} on CIFAR-10 (92 of the 60,000 images decoded from JPEG), {usual['workers']} "
        f"virtual workers of {usual.get('batch size', '?')} images, {usual.get('epochs', '?')} epochs, "
        f"{usual.get('precision', '?')}, one-cycle rate up to {usual.get('learning rate', '?')}{density}. Accuracy is "
        "on the test set at the end of the run; after its sign, the standard deviation over seeds. Bytes are those "
        "that a worker sends, gathered and summed by ring where the paper names nothing else.",
        "",
        f"Made by `wirebench study convergence run --data FOLDER` on {_machines(methods)}; {methods[0].label} by "
        f"`{first.note['launch']}`.",
        "",
    ]


def _machines(methods: Sequence[Method]) -> str:
    """The first method's processor, and those of the methods that ran on others."""
    by: dict[str, list[str]] = {}
    for method in methods:
        for run in method.runs:
            by.setdefault(str(run.has("environment", "cpu", "model")), []).append(method.label)
    usual, *others = by
    return usual + "".join(f" ({', '.join(dict.fromkeys(by[each]))}: {each})" for each in others)


def _cells(method: Method, dense: Method | None) -> list[str]:
    runs, top1, sent = method.runs, method.top1, method.wire_bytes
    reached = [entry for entry in map(first_reaching, runs) if entry is not None]
    arrived = [count / 1e6 for count in map(wire_bytes, reached) if count is not None]
    loss = statistics.mean(dense.top1) - statistics.mean(top1) if dense and dense.top1 and top1 else None
    saved = (
        statistics.mean(dense.wire_bytes) / statistics.mean(sent) if dense and dense.wire_bytes and any(sent) else None
    )
    return [
        method.title,
        str(len(runs)),
        _spread([100 * value for value in top1]),
        "-" if loss is None else f"{100 * loss:.1f}",
        f"{100 * max(method.best):.1f}" if method.best else "-",
        _mean([entry["epoch"] + 1 for entry in reached], len(runs), "{:.1f}"),
        "-" if reached and not arrived else _mean(arrived, len(runs), "{:.4g} MB"),
        f"{statistics.mean(sent) / 1e6:.4g} MB" if sent else "-",
        "-" if saved is None else f"{saved:.3g}x",
        _average(method, "health/compression_error") + (f" {OWN_MOMENTUM}" if method.owns_momentum else ""),
        _average(method, "health/topk_overlap"),
        str(sum(len(run.record.get("warnings", [])) for run in runs) or "-"),
    ]


def _momentum_note(methods: Sequence[Method]) -> list[str]:
    if not any(method.owns_momentum for method in methods):
        return []
    return [
        f"{OWN_MOMENTUM}: this method applies the momentum itself. Its error is that of a sum of gradients, up to "
        "1 / (1 - momentum) times as large, against the gradient of the step: not to be compared with the others'.",
        "",
    ]


def _sketches(methods: Sequence[Method]) -> list[str]:
    """What the sketches showed of the sums, for the methods that measure it."""
    rows = [
        [method.title, *(_average(method, f"compressor/{name}", form) for name, form in _SKETCHED.items())]
        for method in methods
        if method.health("compressor/sketch_error")
    ]
    if not rows:
        return []
    return [
        *table(SKETCH_HEAD, rows),
        "Means over the steps that were measured, those of a dense warm-up left out. `heavy`: entries that the sketch "
        "itself shows as large; the others are `fill`, which the paper draws at random. `recall`: share of the sum's "
        "largest entries that were sent. `sketch error`: norm of the errors of the estimates over that of the sums; an "
        "estimate of 0 would have 1.",
        "",
    ]


_SKETCHED = {"chosen": "{:.0f}", "heavy": "{:.0f}", "recall": "{:.3f}", "sketch_error": "{:.2f}"}


def _average(method: Method, name: str, form: str = "{:.2f}") -> str:
    readings = method.health(name)
    return form.format(statistics.mean(readings)) if readings else "-"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    mean = f"{statistics.mean(values):.2f}"
    return mean if len(values) < 2 else f"{mean} +- {statistics.stdev(values):.2f}"


def _mean(values: Sequence[float], runs: int, form: str) -> str:
    """Mean over the runs that got there, if all did; else how many."""
    if not values:
        return "not reached"
    return form.format(statistics.mean(values)) + ("" if len(values) == runs else f" ({len(values)} of {runs} runs)")
