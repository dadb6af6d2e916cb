"""The rules that the file of a benchmark keeps."""

import json
from pathlib import Path
from typing import Any

import pytest

from papers.committed import breaches
from tests.papers.records import KNOWN, sound
from wirebench.record.overhead_results import summary


def all_reduce(**changes: object) -> dict[str, Any]:
    """A line of `wirebench bench collectives`."""
    cell = {"collective": "ring", "items": 9, "ranks": 4, "seconds": [0.1] * 5, "max_error": 0.0, "identical": True}
    return {**cell, **changes}


def overhead(**changes: object) -> dict[str, Any]:
    """A result of `wirebench bench overhead`."""
    turns = {"ours": [1.0, 2.0, 3.0, 4.0, 5.0], "peer": [1.0, 1.0, 1.0, 1.0, 1.0]}
    about = {"environment": sound()["environment"], "load": sound()["load"], "processes": 4}
    return {"kind": "wirebench overhead", **summary(turns), "turns": turns, **about, **changes}


@pytest.mark.parametrize(
    ("rule", "header", "cell"),
    [
        ("", {}, {}),
        ("commit", {"environment": {**sound()["environment"], "git": {"commit": "d" * 40, "dirty": False}}}, {}),
        ("load unknown", {"load": None}, {}),
        ("machines", {}, {"ranks": 5}),
        ("turns", {}, {"seconds": [0.1] * 4}),
        ("numbers", {}, {"max_error": 0.1}),
        ("numbers", {}, {"identical": False}),
        ("", {}, {"max_error": 0.1, "wire": "int8", "reproduced": True}),
        ("numbers", {}, {"max_error": 0.1, "wire": "int8", "reproduced": False}),
        ("schema", {"kind": "mine"}, {}),
    ],
)
def test_a_benchmarks_file_keeps_the_rules(
    rule: str, header: dict[str, Any], cell: dict[str, Any], results: Path
) -> None:
    about = {"kind": "wirebench collectives", "environment": sound()["environment"], "load": sound()["load"]}
    cells = results / "flexreduce/cells/2+2.jsonl"
    cells.parent.mkdir(parents=True)
    cells.write_text(json.dumps(about | header) + "\n" + json.dumps(all_reduce(**cell)) + "\n")
    assert [breach.rule for breach in breaches(results, KNOWN)] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("", {}),
        ("machines", {"processes": 8}),
        ("turns unknown", {"turns": None}),
        ("turns", {"turns": {"ours": [2.0, 4.0], "peer": [1.0, 1.0]}}),
        ("numbers", {"ours": {"median": 2.0}}),
        ("numbers", {"ratio": {**overhead()["ratio"], "p90": 1.0}}),
    ],
)
def test_a_result_of_overhead_keeps_the_rules(rule: str, changes: dict[str, Any], results: Path) -> None:
    (results / "overhead.json").write_text(json.dumps(overhead(**changes)))
    assert [breach.rule for breach in breaches(results, KNOWN)][:1] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("rule", "error", "commit"), [("", 0.1, "c" * 40), ("numbers", float("nan"), "c" * 40), ("commit", 0.1, "d" * 40)]
)
def test_errors_of_sums_need_a_commit_and_no_quiet_machine(rule: str, error: float, commit: str, results: Path) -> None:
    environment = {**sound()["environment"], "git": {"commit": commit, "dirty": False}}
    cell = {"form": "fp8", "way": "ring", "ranks": 4, "error": error, "law": 0.1}
    file = results / "cpu-2core/sums/smoke.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(f"{json.dumps({'kind': 'wirebench sums', 'environment': environment})}\n{json.dumps(cell)}\n")
    assert [breach.rule for breach in breaches(results, KNOWN)] == ([rule] if rule else [])
