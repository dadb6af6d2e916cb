"""What the package ships of the records: the planner's rates, ranges and accuracies, and reference runs.

`wirebench study publish` writes the files, each with the commit and the time at which that was done. `study check`
names files that do not match the records.
"""

import statistics
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from papers.accuracy import known as trained
from papers.accuracy.known import references
from papers.runner import RESULTS, ROOT
from wirebench.bench import sums as bench_sums
from wirebench.errors import UserError
from wirebench.inspect import reference
from wirebench.planner import known, ranges, sums
from wirebench.record import compressor_results
from wirebench.simulation import compress_rates
from wirebench.telemetry.environment import git
from wirebench.utils import user_files
from wirebench.utils.json_lines import json_text
from wirebench.utils.parsing import json_of

PUBLISHED = "published"
"""The key that says when a file was written, and at which commit."""
CPU = RESULTS / "cpu-2core" / "compressors" / "cells.jsonl"
CPU_LATER = RESULTS / "today" / "order_1gbit" / "rates.jsonl"
"""Methods that CPU lacks, as a study measured them.

That was on another EPYC, with AVX2, where CPU's has AVX-512: copies of methods that are bound by computing differ by up
to 1.8 times between the two.
"""
GPU = RESULTS / "h200" / "compressors" / "cells.jsonl"
GPU_AGAIN = {"chunk_topk": RESULTS / "h200" / "chunk_topk" / "cells.jsonl"}
"""Methods that were changed since, and the file of their new times; other methods in these files are not used."""
FORMATS = {each: each.with_name("formats.jsonl") for each in (CPU, GPU)}
"""Coding in each wire format, as `wirebench bench compressors --formats` measured it; added where it was measured."""
SUMS = {
    "images": (RESULTS / "cpu-2core" / "sums" / "resnet20.jsonl", "ResNet-20's on the digits images"),
    "language": (RESULTS / "cpu-2core" / "sums" / "gpt.jsonl", "a GPT's of 1.9M parameters on Python sources"),
}
"""By kind of model, the errors of sums of its gradients (docs/sums.md), and whose gradients these are."""
OUTSIDE = RESULTS / "prediction" / ranges.NAME

Lines = list[dict[str, Any]]


def files() -> dict[Path, Callable[[], Lines]]:
    """By each file what makes its lines: the first one gets PUBLISHED."""
    return {
        compress_rates.SHIPPED: _cpu_rates,
        compress_rates.SHIPPED_GPU: _gpu_rates,
        ranges.SHIPPED: _outside,
        known.SHIPPED: _accuracies,
        sums.SHIPPED: _sums,
        reference.SHIPPED: lambda: [{"methods": [each._asdict() for each in references()]}],
    }


def publish() -> list[Path]:
    """Write those files that are not what the records give; returns them.

    UserError where the records are not the committed ones, or the code is not a commit's.
    """
    known = git()
    if RESULTS != ROOT / "results" or known is None or known["dirty"]:
        raise UserError("publish: needs a checkout without changes, and its own results (WIREBENCH_RESULTS not set)")
    at = {"commit": known["commit"], "utc": datetime.now(UTC).isoformat(timespec="seconds")}
    written = []
    for path, lines_of in files().items():
        first, *others = _as_read(lines_of())
        if _now(path) == [first, *others]:
            continue
        lines = [json_text(each) for each in ({PUBLISHED: at, **first}, *others)]
        user_files.write(path, "\n".join(lines) + "\n")
        written.append(path)
    return written


def drifts() -> list[str]:
    """A line for each file that is not what the records give."""
    again = "is not what the records give; run: wirebench study publish"
    return [f"{path}: {again}" for path, lines_of in files().items() if _now(path) != _as_read(lines_of())]


def _as_read(lines: Lines) -> Lines:
    """The lines after JSON, which knows no tuples."""
    return [json_of(json_text(each)) for each in lines]


def _now(path: Path) -> Lines | None:
    """The lines that a file has, without PUBLISHED; None where it is not there, or damaged."""
    if not path.is_file():
        return None
    try:
        lines: Lines = [json_of(line) for line in user_files.read(path).splitlines()]
    except (UserError, ValueError):
        return None
    return [{key: value for key, value in each.items() if key != PUBLISHED} for each in lines]


def _cpu_rates() -> Lines:
    header, *cells = _cells(CPU)
    measured = {_method(cell) for cell in cells}
    later = [cell for cell in _cells(CPU_LATER)[1:] if _method(cell) not in measured and not cell["rival"]]
    of, formats = _formats(CPU, header)
    return [{**header, "of": [_name(CPU), _name(CPU_LATER), *of]}, *_needed([*cells, *later]), *formats]


def _gpu_rates() -> Lines:
    header, *cells = _cells(GPU)
    kept = [cell for cell in cells if _method(cell) not in GPU_AGAIN]
    again = [cell for name, path in GPU_AGAIN.items() for cell in _cells(path)[1:] if cell["method"] == name]
    of, formats = _formats(GPU, header)
    return [{**header, "of": [_name(GPU), *map(_name, GPU_AGAIN.values()), *of]}, *_needed([*kept, *again]), *formats]


def _needed(cells: Lines) -> Lines:
    """The cells that the planner reads: of the suite's methods, measured."""
    return [cell for cell in cells if not cell["rival"] and not cell["error"]]


def _formats(beside: Path, header: dict[str, Any]) -> tuple[list[str], Lines]:
    """The file of formats beside another one's cells, and its cells; UserError for one of other workers or devices."""
    path = FORMATS[beside]
    if not path.is_file():
        return [], []
    own, *cells = _cells(path)
    for key in ("workers", "device", "threads"):
        if own[key] != header[key]:
            raise UserError(f"{path}: {key}: {own[key]!r}, and {_name(beside)} has {header[key]!r}")
    return [_name(path)], cells


def _cells(path: Path) -> Lines:
    """Header and cells, which are read once to be checked; UserError for a file that is not that."""
    compressor_results.load(path)
    return [json_of(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _method(cell: dict[str, Any]) -> str:
    return compress_rates.name_of(cell["method"])


def _outside() -> Lines:
    content = json_of(OUTSIDE.read_text(encoding="utf-8"))
    return [{"of": _name(OUTSIDE), **content, "runs": ranges.held_out(content)}]


def _accuracies() -> Lines:
    images = [known.table(each) for each in trained.images()]
    return [{known.IMAGES: images, known.LANGUAGE: [known.table(trained.language())]}]


def _sums() -> Lines:
    return [{"of": [_name(path) for path, _ in SUMS.values()]} | {kind: _known(*SUMS[kind]) for kind in SUMS}]


def _known(path: Path, words: str) -> dict[str, Any]:
    """What KnownSums has of a file of `wirebench bench sums`: the shares that formats cut off, the ranks' correlation.

    By the law one hop's squared error is its reduce-scatter's and the format's share; and the former is that
    share times (P - 1) gradients' energies over the sum's.
    """
    header, cells = bench_sums.load(path)
    last = max(cell.step for cell in cells)
    by = {(cell.form, cell.way, cell.ranks): cell for cell in cells if cell.step == last}
    ranks = max(cell.ranks for cell in cells)
    lost: dict[str, float] = {}
    energies: list[float] = []
    errors: dict[str, dict[str, dict[str, float]]] = {}
    for form in dict.fromkeys(cell.form for cell in cells):
        hop, scatter = (by[form, way, ranks].law ** 2 for way in ("one_hop", "scatter"))
        lost[form] = hop - scatter
        energies.append(lost[form] * (ranks - 1) / scatter)
        errors[form] = {way: {} for _, way, _ in by}
    for (form, way, count), cell in by.items():
        errors[form][way][str(count)] = round(cell.error, 6)
    alike = (statistics.median(energies) / ranks - 1) / (ranks - 1)
    lossless = {
        each["form"]: {"bound": each["bound"], "ratio": each["ratio"]}
        for each in header["lossless"]
        if each["of"] == "gradient"
    }
    return {
        "words": words, "alike": max(round(alike, 6), 0.0),
        "lost": {form: float(f"{share:.6g}") for form, share in lost.items()}, "errors": errors, "lossless": lossless,
    }  # fmt: skip


def _name(path: Path) -> str:
    return f"results/{path.relative_to(RESULTS).as_posix()}"
