"""The table and the curves of scripts/convergence.py: table.md, epochs.png and bytes.png."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scripts.plot_collectives import save
from wirebench import markers, schema
from wirebench.errors import UserError

TARGET = 0.8
HEAD = ("method", "seeds", "top-1 %", "less than dense", "best %", f"epochs to {100 * TARGET:.0f} %",
        f"bytes to {100 * TARGET:.0f} %", "bytes in all", "less bytes than dense", "compression error",
        "overlap with top-k", "warnings")  # fmt: skip
DENSE = "dense"
PER_PANEL = 7


@dataclass(frozen=True)
class Method:
    """One method's runs, one for each seed."""

    label: str
    records: tuple[dict[str, Any], ...]
    launch: str

    def each(self, of: Callable[[dict[str, Any]], float | None]) -> list[float]:
        """The number of every run that has one."""
        found = [of(record) for record in self.records]
        return [value for value in found if value is not None]

    @property
    def top1(self) -> list[float]:
        """Final accuracies."""
        return self.each(lambda record: record["final"]["top1"])

    @property
    def wire_bytes(self) -> list[float]:
        """Bytes on the wire of whole runs, of a worker."""
        return self.each(lambda record: record["history"][-1]["wire_bytes_total"] if record["history"] else None)


def write(folder: Path, quietly: bool = False) -> None:
    """Write the table and the figures of all runs in `folder`; UserError where there is none, unless quietly."""
    methods = load(folder)
    if not methods:
        if quietly:
            return
        raise UserError(f"{folder}: has no METHOD-SEED/method.json; train first")
    save(curves(methods, "epochs", lambda entry: entry["epoch"] + 1), folder / "epochs.png")
    save(curves(methods, "bytes that a worker sent, MB", _megabytes, logarithmic=True), folder / "bytes.png")
    markers.write(folder / "table.md", document(methods))
    if not quietly:
        print(folder / "table.md")


def load(folder: Path) -> list[Method]:
    """All methods, dense first, then by accuracy."""
    found: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for path in sorted(folder.glob("*/method.json")):
        note = json.loads(path.read_text())
        found.setdefault(note["label"], []).append((schema.read(path.parent), note["launch"]))
    methods = [Method(label, tuple(r for r, _ in runs), runs[0][1]) for label, runs in found.items()]
    return sorted(methods, key=lambda method: (method.label != DENSE, -statistics.mean(method.top1 or [0.0])))


def first_reaching(record: dict[str, Any], target: float = TARGET) -> dict[str, Any] | None:
    """The history's first entry whose accuracy is at least `target`."""
    return next((e for e in record["history"] if e["top1"] is not None and e["top1"] >= target), None)


def document(methods: Sequence[Method]) -> str:
    """table.md."""
    record = methods[0].records[0]
    config = record["config"]
    dense = next((method for method in methods if method.label == DENSE), None)
    lines = [
        "# What every method does to the accuracy",
        "",
        f"ResNet-{config['model'].get('depth', '?')} on CIFAR-10 (92 of the 60,000 images decoded from JPEG), "
        f"{record['world_size']} virtual workers of {config['data']['batch_size']} images, {config['train']['epochs']} "
        f"epochs, {config['train']['precision']}, one-cycle rate up to {config['optimizer']['lr']}. Accuracy is on the "
        "test set at the end of the run; after its sign, the standard deviation over seeds. Bytes are those that a "
        "worker sends, gathered and summed by ring where the paper names nothing else.",
        "",
        f"Made by `python scripts/convergence.py --data FOLDER` on {record['environment']['cpu']['model']} with "
        f"{record['environment']['cpu']['cores']} cores; dense by `{methods[0].launch}`.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + " --- |" * len(HEAD),
    ]
    lines += ["| " + " | ".join(_cells(method, dense)) + " |" for method in methods]
    lines += ["", "![accuracy against epochs](epochs.png)", "", "![accuracy against bytes](bytes.png)", ""]
    return "\n".join(lines)


def curves(
    methods: Sequence[Method], across: str, place: Callable[[dict[str, Any]], float], logarithmic: bool = False
) -> Figure:
    """Accuracy of the first seed of every method, a few to a panel; dense is in all of them."""
    dense = [method for method in methods if method.label == DENSE]
    others = [method for method in methods if method.label != DENSE]
    panels = [others[i : i + PER_PANEL] for i in range(0, len(others), PER_PANEL)] or [[]]
    figure = Figure(figsize=(4.2 * len(panels), 4.0), layout="constrained")
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for axis, shown in zip(axes, panels, strict=True):
        for method in dense:
            _line(axis, method, place, color="black", linewidth=2)
        for method in shown:
            _line(axis, method, place, linewidth=1.3)
        axis.set_xlabel(across)
        axis.axhline(TARGET, color="0.6", linestyle=":", linewidth=1)
        if logarithmic:
            axis.set_xscale("log")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=8, frameon=False, loc="lower right")
    axes[0].set_ylabel("top-1 on the test set")
    return figure


def _line(axis: Axes, method: Method, place: Callable[[dict[str, Any]], float], **style: Any) -> None:
    entries = [entry for entry in method.records[0]["history"] if entry["top1"] is not None]
    axis.plot([place(e) for e in entries], [e["top1"] for e in entries], label=method.label, **style)


def _cells(method: Method, dense: Method | None) -> list[str]:
    records, top1, sent = method.records, method.top1, method.wire_bytes
    best = method.each(lambda record: max((e["top1"] or 0.0 for e in record["history"]), default=None))
    reached = [entry for entry in map(first_reaching, records) if entry is not None]
    compared = dense is not None and dense.top1 and top1
    return [
        f"{method.label}{_status(records)}",
        str(len(records)),
        _spread([100 * value for value in top1]),
        f"{100 * (statistics.mean(dense.top1) - statistics.mean(top1)):.1f}" if compared and dense else "-",
        f"{100 * max(best):.1f}" if best else "-",
        _mean([entry["epoch"] + 1 for entry in reached], len(records), "{:.1f}"),
        _mean([entry["wire_bytes_total"] / 1e6 for entry in reached], len(records), "{:.4g} MB"),
        f"{statistics.mean(sent) / 1e6:.4g} MB" if sent else "-",
        f"{statistics.mean(dense.wire_bytes) / statistics.mean(sent):.3g}x" if dense and sent and any(sent) else "-",
        _health(records, "health/compression_error"),
        _health(records, "health/topk_overlap"),
        str(sum(len(record.get("warnings", [])) for record in records) or "-"),
    ]


def _status(records: Sequence[dict[str, Any]]) -> str:
    others = [record["status"] for record in records if record["status"] != "finished"]
    return f" ({', '.join(others)})" if others else ""


def _health(records: Sequence[dict[str, Any]], name: str) -> str:
    found = [record["health"][name]["mean"] for record in records if name in (record.get("health") or {})]
    return f"{statistics.mean(found):.2f}" if found else "-"


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


def _megabytes(entry: dict[str, Any]) -> float:
    return entry["wire_bytes_total"] / 1e6
