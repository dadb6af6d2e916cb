"""The benchmark of collectives: its cells, from real processes, what they say, and its mistakes."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.cli.verbs import verb
from tests.distributed.forked import fork
from wirebench.bench.all_reduce_benchmark import PERIOD, table
from wirebench.bench.collectives import parse_size, prediction_text, size_text, wire_text
from wirebench.errors import UserError
from wirebench.record import collective_results
from wirebench.record.collective_results import AllReduceResult
from wirebench.topology import topology_file

fit = verb("fit")

SCRIPT = "-m wirebench bench collectives"
CELL = AllReduceResult(
    "ring", "ring", 1000, 4, 4, "2+2", "torch", "gloo", 1, 6, (0.002, 0.001, 0.003), 1e-8, True, 0.001,
    ((3300.0, 3300.0, 3000.0, 3000.0), (3000.0, 3000.0, 3000.0, 3000.0)),
)  # fmt: skip


def test_what_a_cell_says() -> None:
    assert CELL.median == 0.002
    assert CELL.algbw == 4000 / 0.002
    assert CELL.busbw == CELL.algbw * 1.5
    assert CELL.prediction_error == pytest.approx(-0.5)
    assert prediction_text(CELL) == "1.000 (-50%)"
    assert wire_text(CELL) == "1.050"


def test_a_wrong_sum_is_not_right() -> None:
    assert CELL.right
    assert not dataclasses.replace(CELL, identical=False).right
    assert not dataclasses.replace(CELL, max_error=2e-5).right


def test_cells_are_read_back(tmp_path: Path) -> None:
    collective_results.save(tmp_path / "a.jsonl", {"layout": "2+2"}, [CELL])
    measured = collective_results.load(tmp_path / "a.jsonl")
    assert measured.cells == (CELL,)
    assert measured.header["layout"] == "2+2"


@pytest.mark.parametrize(
    "content", ["", "x", "[]", '{"kind": "other"}', '{"kind": "wirebench collectives"}\n{"items": 3}']
)
def test_other_files_are_refused_by_name(content: str, tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text(content)
    with pytest.raises(UserError, match=r"b[.]jsonl"):
        collective_results.load(path)


def test_sizes() -> None:
    assert [parse_size(text) for text in ("4", "16k", "1m", "1mi", "60kf", "120mf")] == [
        1, 4_000, 250_000, 262_144, 60_000, 120_000_000,
    ]  # fmt: skip
    assert size_text(58_800_000) == "58.8 MB"
    for bad in ("", "x", "3", "0", "4q", "-4", "1.5k"):
        with pytest.raises(UserError, match="--sizes"):
            parse_size(bad)


def test_every_rank_contributes_something_else_that_float32_holds_exactly() -> None:
    tables = [table(rank) for rank in range(12)]
    assert all(each.numel() == PERIOD and (each.float().double() == each).all() for each in tables)
    assert len({tuple(each.tolist()) for each in tables}) == 12


def test_a_run_on_real_processes(tmp_path: Path) -> None:
    out = tmp_path / "cells.jsonl"
    words = ["--sizes", "4", "4k", "9m", "--repeats", "3", "--seconds", "1", "--json", out]
    words += ["--nccl-json", tmp_path / "nccl.json"]
    words += ["--collectives", "native", "ring", "flexreduce", "tree"]
    ended = fork("torch", 3, words, tmp_path, script=SCRIPT)
    assert ended.code == 0, ended.said
    measured = collective_results.load(out)
    assert [(c.items, c.collective) for c in measured.cells] == [
        (items, name) for items in (1, 1000, 2_250_000) for name in ("native", "ring", "flexreduce", "tree")
    ]
    for each in measured.cells:
        assert each.identical
        assert each.max_error < 1e-6
        assert len(each.seconds) == 3
        assert each.layout == "3"
        assert each.segments == (0 if each.collective == "native" else 1 if each.items < 1e6 else 4)
    assert measured.header["environment"]["cpu"]["cores"] >= 1
    (machine,) = measured.header["load"]
    assert machine["ranks"] == [0, 1, 2]
    assert machine["others_cores"] >= 0
    rows = json.loads((tmp_path / "nccl.json").read_text())["results"]
    assert [(row["count"], row["experiment_name"]) for row in rows] == [(c.items, c.collective) for c in measured.cells]
    assert [row["in_place"]["time"] for row in rows] == pytest.approx([c.median * 1e6 for c in measured.cells])
    # The fit of so few cells on one busy machine is no good; but it is made, written, read and judged.
    topology = tmp_path / "t.toml"
    assert fit([str(out), "--out", str(topology)]) == 0
    assert topology_file.read(topology).fit["cells"] == 12
    assert fit([str(out), "--judge", str(topology)]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--sizes", "5"], "--sizes"),
        (["--collectives", "rinq"], "rinq"),
        (["--topology", "2+2"], "has 4 ranks, but the job has 2"),
        (["--nccl-json", "/dev/null/x.json"], "--nccl-json: /dev/null/x.json: cannot be written"),
    ],
)
def test_mistakes_are_one_line(words: list[str], says: str, tmp_path: Path) -> None:
    ended = fork("torch", 2, words, tmp_path, script=SCRIPT)
    assert ended.code != 0
    told = [line for line in ended.err.splitlines() if line.startswith("wirebench bench collectives: ")]
    assert any(says in line for line in told), ended.said
    assert "wirebench/bench" not in ended.err, ended.said
