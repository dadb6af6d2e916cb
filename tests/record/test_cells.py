"""Files of measurements that are damaged: one line says what is wrong with them, whichever tool reads them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launch import ROOT
from wirebench.cli.main import main

REDUCED = ROOT / "results/cpu-2core/collectives/4x1gbit.jsonl"
COMPRESSED = ROOT / "results/cpu-2core/compressors/cells.jsonl"
RANKING = ["advise", "--trace", "resnet20_gtx1080ti", "--network", "1gbe", "--workers", "4", "--rates"]
READERS = [
    (["fit"], REDUCED),
    (["bench", "plot-collectives", "--out", "/nowhere"], REDUCED),
    (["bench", "plot-compressors", "--out", "/nowhere"], COMPRESSED),
    (RANKING, COMPRESSED),
]
CHAOS: dict[str, Any] = {
    "kind": "chaos", "hosts": 4, "elastic": True, "mirror": True, "timeout_seconds": 4.0, "mtbf_seconds": 60.0,
    "link": "100mbit", "kinds": [], "seed": 0, "calls": [],
}  # fmt: skip


def mistake(words: Sequence[str], path: Path, capsys: pytest.CaptureFixture) -> str:
    """What the tool says of the file, which it must refuse with one line."""
    assert main([*words, str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(path) in error, error
    return str(error)


@pytest.mark.parametrize(("words", "source"), READERS)
@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe", b"", b"{}", b"[1]\n", b"9" * 5_000])
def test_what_is_no_file_of_cells_is_refused(
    words: list[str], source: Path, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "cells.jsonl"
    for before in (b"", source.read_bytes()[: source.read_bytes().index(b"\n") + 1]):
        if content or not before:
            path.write_bytes(before + content)
            mistake(words, path, capsys)


@pytest.mark.parametrize(("words", "source"), READERS)
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("items", "many", "items: has 'many'"),
        ("items", -1, "items: has -1"),
        ("items", None, "items: has None"),
        ("items", 10**30, "items: has 1000"),
        ("seconds", [], "seconds"),
        ("seconds", [0.1, "x"], "seconds"),
        ("seconds", 3, "seconds: has 3"),
        ("seconds", [float("nan")], "seconds"),
        ("colour", "red", "needs "),
    ],
)
def test_a_cell_that_holds_something_else_is_named_with_its_line(
    words: list[str], source: Path, name: str, value: Any, says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    header, first, second, *_ = source.read_text().splitlines()
    path = tmp_path / "cells.jsonl"
    path.write_text("\n".join([header, first, json.dumps({**json.loads(second), name: value})]))
    error = mistake(words, path, capsys)
    assert "line 3 is not a cell of this version" in error and says in error


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([CHAOS | {"hosts": "4"}], "line 1: hosts is '4'"),
        ([CHAOS, 7], "line 2: needs a table"),
        ([CHAOS, {"number": 1}], "line 2: has no kind"),
        ([CHAOS, {"number": True}], "line 2: number is True"),
    ],
)
def test_trials_that_hold_something_else_are_named_with_their_line(
    lines: list[Any], says: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = tmp_path / "elastic.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert main(["chaos", "--report", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    path.write_bytes(b"[" * 100_000)
    assert main(["chaos", "--report", "--out", str(tmp_path)]) == 2
    assert "nested too deeply" in capsys.readouterr().err
