"""The rules of trust for a file of `wirebench bench`: commit, machines, load, enough turns, numbers that agree."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from papers.failures.rules import faults
from papers.repository import Repository
from wirebench.bench import sums
from wirebench.chaos import trials_file
from wirebench.errors import UserError
from wirebench.record import collective_results, compressor_results, overhead_results
from wirebench.record.rules import DAMAGED, NEAR, TURNS, Broken, broken_header, machines
from wirebench.utils import user_files
from wirebench.utils.parsing import json_of

Lines = Sequence[Mapping[str, Any]]
"""The objects of a file: the header, then the results; one alone where all is one object."""


def broken(path: Path, repository: Repository) -> list[Broken]:
    """The rules that the file breaks; ValueError, KeyError, TypeError or AttributeError for no file of a benchmark."""
    lines = _lines(path)
    kind = lines[0].get("kind", overhead_results.KIND)  # older files of overhead do not say it
    of_calls = [mistake for call in calls(lines[0]) for mistake in broken_header(call, repository.knows)]
    if kind in UNTIMED:
        of_calls = [mistake for mistake in of_calls if not mistake.rule.startswith("load")]
    return [*of_calls, *RULES[kind](lines)]


def rules(path: Path) -> tuple[str, ...]:
    """The names of the rules that the file breaks; whether its commits are known is no matter. UserError."""
    try:
        return tuple(dict.fromkeys(each.rule for each in broken(path, Repository(None))))
    except DAMAGED as error:
        raise UserError(f"{path}: is no file of a benchmark: {error!r}") from error


def calls(header: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a header says of the calls that made its results, each with its environment and load: mostly of itself."""
    several: list[Mapping[str, Any]] = header.get("calls") or [header]
    return several


def header(path: Path) -> Mapping[str, Any]:
    """What the file says of itself; raises as `broken` does."""
    return _lines(path)[0]


def _lines(path: Path) -> Lines:
    text = user_files.read(path)
    return [json_of(line) for line in text.splitlines()] if ".jsonl" in path.suffixes else [json_of(text)]


def _all_reduces(lines: Lines) -> Iterator[Broken]:
    """Rules for `wirebench bench collectives`: a line for each collective at each size."""
    header, cells = lines[0], lines[1:]
    yield from machines(header, cells[0]["ranks"])
    yield from _turns([len(cell["seconds"]) for cell in cells])
    for cell in cells:
        if not cell["identical"] or not collective_results.is_sum(cell["max_error"], cell.get("reproduced")):
            yield Broken("numbers", f"{cell['collective']} of {cell['items']} floats gave a wrong sum")


def _compressors(lines: Lines) -> Iterator[Broken]:
    """Rules for `wirebench bench compressors`: one process on one machine; a line for each method and size."""
    yield from _turns([len(cell["copy_seconds"]) for cell in lines[1:] if not cell["error"]])


def _sums(lines: Lines) -> Iterator[Broken]:
    """Rules for `wirebench bench sums`: an error for each format, way and number of ranks; no times."""
    for cell in lines[1:]:
        if not (0 <= cell["error"] < math.inf and 0 < cell["law"] < math.inf):
            yield Broken("numbers", f"{cell['form']}, {cell['way']}, {cell['ranks']} ranks: {cell['error']:.4g}")


def _two_sides(lines: Lines) -> Iterator[Broken]:
    """Rules for `wirebench bench overhead` and `checkpoint`: one object."""
    result = lines[0]
    yield from machines(result, result["processes"])
    turns = result.get("turns")
    if turns is None:
        yield Broken("turns unknown", "the file has medians alone")
        return
    yield from _turns([len(seconds) for seconds in turns.values()])
    if result.get("kind") == overhead_results.CHECKPOINT:
        yield from _stalls(result)
    for name, expected in overhead_results.summary(turns).items():
        for key, value in expected.items():
            if not math.isclose(result[name][key], value, rel_tol=NEAR):
                yield Broken("numbers", f"{name}.{key} is {result[name][key]:.4g}, and the turns say {value:.4g}")


def _stalls(result: Mapping[str, Any]) -> Iterator[Broken]:
    """Rules for `wirebench bench checkpoint`: numbers that follow from how long each turn stood still."""
    expected = overhead_results.stalls(result["stalls"], result["every"], result["not saving"]["median"])
    for key, value in expected.items():
        if not math.isclose(result[key], value, rel_tol=NEAR):
            yield Broken("numbers", f"{key} is {result[key]:.4g}, and the stalls say {value:.4g}")


def _turns(counts: Sequence[int]) -> Iterator[Broken]:
    few = [count for count in counts if count < TURNS]
    if few:
        which = "all" if len(few) == len(counts) else f"{len(few)} of {len(counts)}"
        yield Broken("turns", f"{which} results have {_range(few)}, and a claim about speed needs {TURNS}")


def _range(counts: Sequence[int]) -> str:
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


RULES: Mapping[str, Callable[[Lines], Iterator[Broken]]] = {
    collective_results.KIND: _all_reduces,
    compressor_results.KIND: _compressors,
    sums.KIND: _sums,
    overhead_results.KIND: _two_sides,
    overhead_results.CHECKPOINT: _two_sides,
    trials_file.KIND: faults,
}
"""By the kind that the file says it is."""
UNTIMED = {sums.KIND}
"""Kinds without times: how busy the machine was is no matter."""
