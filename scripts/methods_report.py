#!/usr/bin/env python3
"""The table and the figure of what scripts/bench_methods.py measured: table.md and steps.png in its folder.

python scripts/methods_report.py results/methods/vgg16
"""

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.bench_methods import WIDE_SUFFIX
from scripts.cluster import Parser
from scripts.plot_collectives import new_figure, save
from wirebench import paper_gs_sgd, schema
from wirebench.errors import UserError
from wirebench.files import write_atomically

DENSE = "dense"
HEAD = (
    "method", "step ms [all turns]", "x dense", "compress", "exchange, exposed", "payload", "wire",
    "wire, mean of ranks", "interface", "interface - headers / wire", "ratio on the wire", "state",
)  # fmt: skip
PARTS = {"compute": "0.75", "compress": "#d95f02", "communication": "#1f78b4"}


@dataclass(frozen=True)
class Row:
    """One method: its label, its cluster, and the records of its turns."""

    label: str
    note: dict[str, Any]
    records: tuple[dict[str, Any], ...]

    def median(self, *path: str) -> float | None:
        """Median over turns of the number at `path` of the record; None where one is null."""
        values = []
        for record in self.records:
            found: Any = record
            for key in path:
                found = found[key]
            values.append(found)
        return None if any(value is None for value in values) else statistics.median(values)

    @property
    def step_seconds(self) -> float:
        """Median over turns of the median step."""
        return self.median("step_seconds", "median") or float("nan")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, or 2 with one line on standard error."""
    try:
        options = _parser().parse_args(arguments)
        rows = load(options.folder)
        write_atomically(options.folder / "table.md", document(rows))
        save(figure(rows), options.folder / "steps.png")
    except OSError as error:
        print(f"methods_report.py: {options.folder}: cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    except UserError as error:
        print(f"methods_report.py: {error}", file=sys.stderr)
        return error.exit_code
    print(options.folder / "table.md")
    return 0


def load(folder: Path) -> list[Row]:
    """All methods below `folder`, the fastest first; UserError where there is none, or of several settings."""
    found: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for path in sorted(folder.glob("*/method.json")):
        note = json.loads(path.read_text())
        found.setdefault(note["label"], []).append((note, schema.read(path.parent)))
    if not found:
        raise UserError(f"{folder}: has no METHOD-TURN/method.json; run bench_methods.py first")
    rows = [Row(label, runs[0][0], tuple(record for _, record in runs)) for label, runs in found.items()]
    settings = {(row.records[0]["config"]["name"], row.note["hosts"], row.note["link"]) for row in rows}
    if len(settings) > 1:
        raise UserError(f"{folder}: mixes clusters or configs: {sorted(settings)}")
    return sorted(rows, key=lambda row: row.step_seconds)


def document(rows: Sequence[Row]) -> str:
    """table.md."""
    first = rows[0].records[0]
    dense = next((row.step_seconds for row in rows if row.label == DENSE), None)
    config, machine, note = first["config"], first["environment"]["cpu"], rows[0].note
    commits = ", ".join(sorted({_commit(record) for row in rows for record in row.records}))
    lines = [
        f"# Every method on {config['model'].get('trace', config['model']['name'])}",
        "",
        f"{first['parameters']:,} parameters, {first['world_size']} workers on {note['hosts']} emulated hosts with "
        f"links of {note['link']}, all on one {machine['model']} with {machine['cores']} cores. The workers share "
        "these, so `compress` is the time of a busy part of a core. Times are milliseconds, bytes those of one step; "
        "`wire` and the interface are rank 0's.",
        "",
        *_slowed(config),
        f"Commits: {commits}. Made by `scripts/bench_methods.py`, which runs `{note['launch']}` and the like.",
        "",
        "| " + " | ".join(HEAD) + " |",
        "|" + " --- |" * len(HEAD),
    ]
    lines += ["| " + " | ".join(_cells(row, dense)) + " |" for row in rows]
    lines += ["", "![time per step](steps.png)", "", *claims(rows), ""]
    return "\n".join(lines)


def claims(rows: Sequence[Row]) -> list[str]:
    """The gs-SGD paper's claims about these methods, each beside what was measured."""
    steps = {row.label: row.step_seconds for row in rows}
    model = "VGG-16" if "vgg16" in rows[0].records[0]["config"]["name"] else "ResNet-20"
    heads = ("claim (arXiv 2108.06004, Table II)", "paper", "here", "bytes of a step, ours", "verdict")
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    wires = {row.label: row.median("bytes_per_step", "wire_mean") for row in rows}
    for claim, suffix in itertools.product(paper_gs_sgd.SPEEDUPS[model], ("", WIDE_SUFFIX)):
        ours, rival = "gs_sgd" + suffix, claim.rival + suffix
        if {ours, rival} <= steps.keys():
            ratio = steps[rival] / steps[ours]
            sizes = f"{_bytes(wires[ours])} against {_bytes(wires[rival])}"
            cells = (f"{model}: gs-SGD over {rival}", f"{claim.ratio}x", f"{ratio:.2f}x", sizes)
            lines.append("| " + " | ".join([*cells, claim.verdict(ratio)]) + " |")
    return lines if len(lines) > 2 else []


def figure(rows: Sequence[Row]) -> Any:
    """A bar for every method: what computes, what compresses, and the communication that is left."""
    drawn, axes = new_figure("", "milliseconds per step", "")
    drawn.set_size_inches(7.5, 0.28 * len(rows) + 1.2)
    computing = min(_computing(row) for row in rows)
    for place, row in enumerate(reversed(rows)):
        start = 0.0
        for (name, colour), seconds in zip(PARTS.items(), _parts(row, computing), strict=True):
            axes.barh(place, 1e3 * seconds, left=start, color=colour, label=name if place == 0 else None)
            start += 1e3 * seconds
    axes.set_yticks(range(len(rows)), [row.label for row in reversed(rows)], fontsize=8)
    dense = next((row.step_seconds for row in rows if row.label == DENSE), None)
    if dense is not None:
        axes.axvline(1e3 * dense, color="black", linestyle=":", linewidth=1, label="dense")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="upper right")
    return drawn


def _computing(row: Row) -> float:
    """Seconds of a step that are neither compression nor the wait for other ranks."""
    return sum(row.median("phases", name) or 0.0 for name in ("data", "forward", "backward", "update"))


def _parts(row: Row, least: float) -> tuple[float, float, float]:
    """Seconds of a step: computing, compressing that was not hidden, and all else.

    least  computing of the methods that show it; DDP waits within the backward pass, so that its own cannot be told
    """
    compress = row.median("phases", "compress")
    computing = least if compress is None else _computing(row)
    compress = min(compress or 0.0, row.median("phases", "exchange_exposed") or 0.0)
    return computing, compress, max(row.step_seconds - computing - compress, 0.0)


def _cells(row: Row, dense: float | None) -> list[str]:
    wire, nic = row.median("bytes_per_step", "wire"), row.median("bytes_per_step", "nic")
    headers = row.median("bytes_per_step", "nic_headers")
    known = None not in (wire, nic, headers) and wire
    checked = f"{((nic or 0) - (headers or 0)) / (wire or 1):.3f}" if known else "-"
    lows = min(record["step_seconds"]["p10"] for record in row.records)
    highs = max(record["step_seconds"]["p90"] for record in row.records)
    return [
        f"{row.label} ({_composition(row)})",
        f"{1e3 * row.step_seconds:.0f} [{1e3 * lows:.0f} - {1e3 * highs:.0f}]",
        "-" if dense is None else f"{row.step_seconds / dense:.2f}",
        _milliseconds(row.median("phases", "compress")),
        _milliseconds(row.median("phases", "exchange_exposed")),
        _bytes(row.median("bytes_per_step", "payload")),
        _bytes(wire),
        _bytes(row.median("bytes_per_step", "wire_mean")),
        _bytes(nic),
        checked,
        f"{row.median('compression_ratio', 'wire') or float('nan'):.3g}x",
        "-" if row.median("compressor_state") is None else f"{row.median('compressor_state'):.2g} d",
    ]


def _composition(row: Row) -> str:
    config = row.records[0]["config"]
    return f"{config['scheduler']['name']}, {config['collective']['name']}"


def _slowed(config: dict[str, Any]) -> list[str]:
    """What an emulation in slow motion means for the figures."""
    factor = config["network"]["dilation"]
    if factor == 1:
        return []
    return [
        f"Everything but the compressors is slowed down {factor:g} times, links and computing alike: what stands here "
        f"are {factor:g} times the times of links {factor:g} times as fast, with compressors that are {factor:g} times "
        "as fast as this machine's.",
        "",
    ]


def _commit(record: dict[str, Any]) -> str:
    git = record["environment"]["git"]
    return "unknown" if git is None else git["commit"][:10] + (" and changes" if git["dirty"] else "")


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.0f}"


def _bytes(count: float | None) -> str:
    if count is None:
        return "-"
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


def _parser() -> argparse.ArgumentParser:
    summary, _, examples = str(__doc__).partition("\n")
    parser = Parser(
        description=summary, epilog="examples:" + examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="what bench_methods.py --out named")
    return parser


if __name__ == "__main__":
    sys.exit(main())
