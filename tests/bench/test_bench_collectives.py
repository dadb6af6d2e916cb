"""The benchmark of collectives: its cells, from real processes, its mistakes, and its figures."""

import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests import charts
from tests.charts import lines
from tests.cli.verbs import verb
from tests.collectives.execution.test_coded import coded, inputs_of, served
from tests.distributed.forked import fork
from tests.distributed.launch import ROOT
from tests.flexreduce import cell, put_cells
from wirebench import collectives
from wirebench.bench import fit_network, plot_collectives
from wirebench.bench.all_reduce_benchmark import (
    PERIOD,
    AllReduceBenchmark,
    _largest_error,
    planned_bytes,
    predicted_seconds,
    table,
)
from wirebench.bench.collectives import parse_size, prediction_text, size_text, wire_text
from wirebench.bench.plot_collectives import (
    busbw_against_size,
    by_collective,
    dense_limit,
    draw,
    latency_against_learners,
    latency_against_size,
)
from wirebench.collectives.plan import Collective
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Metered
from wirebench.errors import UserError
from wirebench.record import collective_results
from wirebench.record.cells import Measurement
from wirebench.record.collective_results import AllReduceResult
from wirebench.topology import topology_file
from wirebench.topology.tree import Link, Topology

fit = verb("fit")

SCRIPT = "-m wirebench bench collectives"
CELL = AllReduceResult(
    "ring", "ring", 1000, 4, 4, "2+2", "torch", "gloo", 1, 6, (0.002, 0.001, 0.003), 1e-8, True, 0.001,
    ((3300.0, 3300.0, 3000.0, 3000.0), (3000.0, 3000.0, 3000.0, 3000.0)),
)  # fmt: skip
CODED = dataclasses.replace(CELL, max_error=0.01, wire="int8", reproduced=True)


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
    assert CODED.right and CODED.label == "ring in int8" and CELL.label == "ring"
    assert not dataclasses.replace(CODED, identical=False).right
    assert not dataclasses.replace(CODED, reproduced=False).right


def test_cells_are_read_back(tmp_path: Path) -> None:
    collective_results.save(tmp_path / "a.jsonl", {"layout": "2+2"}, [CELL, CODED])
    measured = collective_results.load(tmp_path / "a.jsonl")
    assert measured.cells == (CELL, CODED)
    assert measured.header["layout"] == "2+2"


def test_cells_of_older_files_have_no_wire_format(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    collective_results.save(path, {}, [CELL])
    head, line = path.read_text().splitlines()
    older = {key: value for key, value in json.loads(line).items() if key not in ("wire", "reproduced")}
    path.write_text(f"{head}\n{json.dumps(older)}\n")
    assert collective_results.load(path).cells == (CELL,)
    path.write_text(f"{head}\n{json.dumps({key: older[key] for key in older if key != 'rounds'})}\n")
    with pytest.raises(UserError, match=r"line 2 .* needs collective, plan"):
        collective_results.load(path)


@pytest.mark.parametrize(("wire", "reproduced"), [("int8", None), ("", True)])
def test_a_cell_has_been_reproduced_in_a_wire_format_alone(wire: str, reproduced: bool | None, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    collective_results.save(path, {}, [dataclasses.replace(CELL, wire=wire, reproduced=reproduced)])
    with pytest.raises(UserError, match=r"line 2 .* needs reproduced where there is a wire format, and only there"):
        collective_results.load(path)


def test_links_are_fitted_to_cells_without_a_wire_format(tmp_path: Path) -> None:
    for name, cells in (("both", [CODED, CELL]), ("coded", [CODED])):
        collective_results.save(tmp_path / name, {}, cells)
    assert fit_network.load([tmp_path / "both"]) == [CELL]
    with pytest.raises(UserError, match="cells: need one layout, got no cell at all"):
        fit_network.load([tmp_path / "coded"])


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
    for bad in ("", "3", "0", "-4"):
        with pytest.raises(UserError, match="--sizes"):
            parse_size(bad)


def test_every_rank_contributes_something_else_that_float32_holds_exactly() -> None:
    tables = [table(rank) for rank in range(12)]
    assert all(each.numel() == PERIOD and (each.float().double() == each).all() for each in tables)
    assert len({tuple(each.tolist()) for each in tables}) == 12


def test_a_number_that_is_none_is_an_infinite_error() -> None:
    found = table(0)[:9].float()
    assert _largest_error(found, table(0)) == 0
    found[4] = torch.nan
    assert _largest_error(found, table(0)) == math.inf


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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ["torch", "horovod"])
def test_sums_in_wire_formats_on_real_processes(engine: str, tmp_path: Path) -> None:
    """Also of one number, and in segments that start together, or in turn; each is what virtual ranks get."""
    out = tmp_path / "cells.jsonl"
    words = ["--sizes", "4", "9m", "--repeats", "3", "--seconds", "1", "--topology", "1+2", "--json", out]
    words += ["--collectives", "native", "ring", "tree", "--wires", "none", "int8"]
    words += ["--nccl-json", tmp_path / "nccl.json"]
    ended = fork(engine, 3, words, tmp_path, script=SCRIPT)
    assert ended.code == 0, ended.said
    # The engine's own takes no format, which costs the others nothing.
    assert ended.err.count("the engine's own all-reduce takes no wire format; left out: native in int8\n") == 1
    cells = collective_results.load(out).cells
    assert [(c.items, c.collective, c.wire) for c in cells] == [
        (items, name, wire)
        for items in (1, 2_250_000)
        for name, wire in [("native", ""), *((name, wire) for name in ("ring", "tree") for wire in ("", "int8"))]
    ]
    for each in [each for each in cells if each.collective != "native"]:
        assert each.right and len(each.seconds) == 3
        assert each.reproduced is (True if each.wire else None)
        assert each.max_error < (0.02 if each.wire else 1e-6)
        assert (each.segments > 1) == (each.items > 1)
        assert each.plan == each.label
    assert all(each.max_error > 1e-4 for each in cells if each.wire and each.items > 1)
    rows = json.loads((tmp_path / "nccl.json").read_text())["results"]
    assert [row["experiment_name"] for row in rows] == [each.label for each in cells]


def test_a_sum_in_a_wire_format_that_is_wrong_by_one_bit_is_found(tmp_path: Path) -> None:
    """Whether one rank has it or all; the number lies in the last segment."""
    out = tmp_path / "cells.jsonl"
    words = ["--sizes", "9m", "--repeats", "1", "--seconds", "0.1", "--json", out]
    words += ["--collectives", "ring", "tree", "one_hop", "--wires", "int8"]
    ended = fork("torch", 3, words, tmp_path, script="tests/bench/spoiled_sums.py")
    assert 1 in ended.codes, ended.said
    assert "wrong sums: tree in int8 of 9 MB, one_hop in int8 of 9 MB" in ended.err
    ring, tree, one_hop = collective_results.load(out).cells
    assert ring.right and not tree.identical and one_hop.identical and one_hop.reproduced is False


def trial(collective: Collective, topology: Topology) -> AllReduceBenchmark:
    """What rank 0 of a job would measure; it runs nothing."""
    communicators = [Metered(each) for each in LocalHub(topology.size).communicators]
    engine: Any = SimpleNamespace(communicators=communicators, device=torch.device("cpu"))
    nic: Any = None
    return AllReduceBenchmark(engine, collective, topology, nic)


@pytest.mark.parametrize("form", ["int8", "fp16"])
def test_every_call_in_a_wire_format_sums_numbers_that_stay_finite(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where 200 calls follow one another, as of small sums, each of which takes the sum of the one before."""
    each, found, tensor = trial(coded("ring", form), Topology.parse("2+2")), [], torch.zeros(100)

    def add(values: torch.Tensor) -> None:
        found.append(values.clone())
        values.mul_(4)

    monkeypatch.setattr(each, "barrier", lambda: None)
    monkeypatch.setattr(each, "_sum", add)
    each.nic = SimpleNamespace(read=lambda: None)  # type: ignore[assignment]
    each.repeat(tensor, 200)
    assert len(found) == 200 and not tensor.any()
    largest = torch.stack(found).abs().amax(1)
    assert (
        largest.min() > 0.5 and 4 * largest.max() < torch.finfo(torch.float16 if form == "fp16" else torch.float32).max
    )


@pytest.mark.parametrize("form", ["int8", "nvfp4"])
def test_planned_bytes_are_those_that_ranks_send_scales_included(form: str) -> None:
    """Of a sum in several segments, whose last chunk is not full."""
    topology, numel, collective = Topology.parse("1+1+1"), 3_800_001, coded("ring", form)
    each = trial(collective, topology)
    assert len(each.segments(numel).parts) > 1
    _, sent = served(collective, topology, inputs_of(3, numel))
    planned = planned_bytes(each, numel, lambda items: pytest.fail("the collective has a plan"))
    assert [to_others for to_others, _ in planned] == sent


def test_a_prediction_in_a_wire_format_has_its_bytes_and_its_coding() -> None:
    topology, numel = Topology.parse("2+2", [Link(0.0, 1e9), Link(0.0, 1e9)]), 14_700_000
    of_fp32 = predicted_seconds(trial(collectives.build("ring"), topology), numel)
    of_int8 = predicted_seconds(trial(coded("ring", "int8"), topology), numel)
    assert of_fp32 and of_int8 and 1.05 * 260 / 1024 < of_int8 / of_fp32 < 1
    assert predicted_seconds(trial(coded("ring", "int8"), Topology.parse("2+2")), numel) is None


@pytest.mark.parametrize(
    ("words", "says"),
    [
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


def test_the_times_of_the_page_are_those_of_its_file() -> None:
    """docs/sums.md: for each format bytes, and the times of both ways, alone and over bf16's ring."""
    cells = collective_results.load(ROOT / "results/cpu-2core/collectives/4x1gbit-wires.jsonl").cells
    of = {(each.collective, each.wire): each for each in cells}
    dense, other = of["ring", ""], of["ring", "bf16"]
    page = (ROOT / "docs/sums.md").read_text(encoding="utf-8")
    for wire in ("", "bf16", "fp8", "int8", "int4"):
        planned = planned_of(of["ring", wire])
        row = [f"`{wire or 'fp32'}`", f"{planned / planned_of(dense):.3f}", f"{planned * 8 / 1e6:.0f}"]
        for each in (of["ring", wire], of["one_hop", wire]):
            low, high = (1e3 * end for end in each.spread)
            ratios = [mine / its for mine, its in zip(each.seconds, other.seconds, strict=True)]
            below, middle, above = np.percentile(ratios, [10, 50, 90])
            row += [f"{1e3 * each.median:.0f} [{low:.0f} - {high:.0f}]"]
            row += ["1.000" if each is other else f"{middle:.3f} [{below:.3f} - {above:.3f}]"]
            assert wire_text(each) == "1.003" and planned_of(each) == pytest.approx(planned, rel=1e-3)
        assert f"| {' | '.join(row)} |\n" in page


def planned_of(cell: AllReduceResult) -> float:
    """Bytes that the busiest machine sends by its plan."""
    assert cell.machines
    return max(machine[2] for machine in cell.machines)


main = verb("bench", "plot-collectives")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Rings at two sizes on three clusters; the last has one size more."""
    for layout in ("4", "2+2", "3+3"):
        more = [cell(layout, items=30, seconds=[1.0])] if layout == "3+3" else []
        put_cells(tmp_path, layout, [cell(layout, items=n, seconds=[n / 10]) for n in (10, 20)] + more)
    return [tmp_path / "cells" / f"{layout}.jsonl" for layout in ("4", "2+2", "3+3")]


def test_the_limit_of_the_links_counts_machines() -> None:
    # 2 machines: every byte crosses each link once. 3 machines: 4/3 times. 1000 items are 32 000 bits.
    assert dense_limit(cell("2+3", items=1000), 1e6) == pytest.approx(0.032)
    assert dense_limit(cell("1+1+1", items=1000), 1e6) == pytest.approx(0.032 * 4 / 3)
    assert dense_limit(cell("4", items=1000), 1e6) is None
    # 1000 items are four times 256, each with a scale of four bytes.
    assert dense_limit(cell("2+3", items=1000, wire="int8"), 1e6) == pytest.approx(4 * 260 * 8 / 1e6)


def counts(measured: dict[str, tuple[AllReduceResult, ...]], size: str | None) -> dict[str, int]:
    """How many cells are compared in each wire format."""
    return {wire: len(each) for wire, each in plot_collectives._compared(measured, size)[0].items()}


def test_each_wire_format_has_figures_of_its_own() -> None:
    plain, int8 = cell("2+2", items=1000), cell("2+2", items=1000, wire="int8", reproduced=True)
    drawn = plot_collectives.figures("a", Measurement({}, (plain, int8)), 1e6)
    names = {f"{kind}-a{wire}.svg": kind for kind in ("latency", "busbw") for wire in ("", "-int8")}
    assert drawn.keys() == names.keys()
    for name, figure in drawn.items():
        title = " ".join(charts.specification(figure)["title"]["text"])
        assert title.endswith(", in int8") == ("int8" in name), title
        assert lines(figure)["ring"][0] == [4000]
    assert lines(drawn["latency-a-int8.svg"])["limit of the links"][1] == pytest.approx([4 * 260 * 8 / 1e3])
    # A figure against learners needs the format on several clusters.
    three = {"2+2": (plain, int8), "4": (cell("4", items=1000),), "2+3": (cell(items=1000),)}
    assert counts(three, None) == {"": 3}
    three["4"] = (cell("4", items=1000, wire="int8", reproduced=True),)
    assert counts(three, None) == {"": 2, "int8": 2}


def test_a_format_without_a_common_size_is_named_and_the_others_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for layout, items in (("2+2", 1000), ("3+3", 2000)):
        coded = dataclasses.replace(cell(layout, items=items), wire="int8", reproduced=True)
        put_cells(tmp_path, layout, [cell(layout, items=500), coded])
    given = [tmp_path / "cells" / f"{layout}.jsonl" for layout in ("2+2", "3+3")]
    monkeypatch.setattr(plot_collectives, "save", lambda figure, path: path)
    drawn = draw(given, tmp_path, None, None)
    assert {"learners-500.svg", "latency-2+2-int8.svg"} <= {path.name for path in drawn}
    assert "learners-1000-int8.svg" not in {path.name for path in drawn}
    (line,) = capsys.readouterr().err.splitlines()
    assert "no figure against learners in int8: FILES: no size is in all of them" in line
    # A size that int8 has: then fp32 is what has none.
    assert "learners-1000-int8.svg" in {path.name for path in draw(given, tmp_path, "4000", None)}
    assert "in fp32 without a wire format: --size: no file has 4000" in capsys.readouterr().err
    with pytest.raises(UserError, match="--size: no file has 3k"):
        draw(given, tmp_path, "3k", None)


def test_latency_against_size_shows_medians_predictions_and_the_limit() -> None:
    found = [
        cell(items=200, seconds=[3.0, 1.0, 2.0], predicted_seconds=1.5),
        cell(items=100, seconds=[0.5], predicted_seconds=0.25),
        cell(collective="mine", items=100, seconds=[7.0]),
    ]
    figure = latency_against_size(found, 1000.0, "a machine; commit abc")
    charts.check(figure)
    shown = lines(figure)
    assert shown["ring"] == ([400, 800], [500.0, 2000.0])
    assert shown["mine"] == ([400], [7000.0])
    assert shown["ring, predicted"] == ([400, 800], [250.0, 1500.0])
    spread = {row["x"]: (row["low"], row["high"]) for row in charts.of(figure, "area") if row["name"] == "ring"}
    assert spread[800] == (pytest.approx(1200), pytest.approx(2800))
    assert sorted(charts.names(figure)) == ["limit of the links", "mine", "ring"], "a prediction has its line's colour"
    assert charts.axes(figure, "x") == {"size of the sum, bytes"}
    assert charts.axes(figure, "y") == {"time of an all-reduce, ms"}
    said = charts.note(figure)
    assert "1 to 3 repeats each" in said and "dashed: predicted" in said and said.endswith("a machine; commit abc")
    assert shown["limit of the links"] == ([400, 800], [3200.0, 6400.0])
    assert "limit of the links" not in lines(latency_against_size(found))


def test_without_predictions_there_is_no_dashed_line() -> None:
    assert set(lines(latency_against_size([cell()]))) == {"ring"}


def test_bus_bandwidth_is_that_of_nccl_tests() -> None:
    # 2 (P-1)/P of 40 MB in 2 s.
    [shown] = lines(busbw_against_size([cell("2+3", items=10_000_000, seconds=[2.0])])).values()
    assert shown[0] == [40_000_000] and shown[1] == pytest.approx([32.0])


def test_learners_are_in_order_and_named() -> None:
    found = [cell("3+3", seconds=[3.0]), cell("4", seconds=[1.0]), cell("2+2", seconds=[2.0])]
    figure = latency_against_learners(found, 1e9)
    charts.check(figure)
    assert lines(figure)["ring"] == (["4\n2+2", "4\n4", "6\n3+3"], [2000.0, 1000.0, 3000.0])
    # A machine alone has no link to be limited by.
    assert lines(figure)["limit of the links"][0] == ["4\n2+2", "6\n3+3"]


def test_every_collective_looks_the_same_in_every_figure() -> None:
    found = [cell(collective=name) for name in ("tree", "mine", "ring", "flexreduce")]
    assert list(by_collective(found)) == ["ring", "flexreduce", "tree", "mine"]
    both = [charts.of(draw(found), "line") for draw in (latency_against_size, busbw_against_size)]
    first, second = ({(row["name"], row["colour"], row["shape"]) for row in rows} for rows in both)
    assert first == second and len(first) == 4 == len({colour for _, colour, _ in first})


@pytest.mark.slow
def test_every_file_has_its_figures_and_all_share_one(files: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "new" / "figures"
    written = draw(files, out, None, "100mbit")
    names = {f"{kind}-{file.stem}.svg" for kind in ("latency", "busbw") for file in files}
    # 30 items are larger, but not every file has them.
    assert {path.name for path in written} == {path.name for path in out.iterdir()} == names | {"learners-20.svg"}
    assert all(path.read_bytes().startswith(b"<svg") for path in written)


@pytest.mark.slow
def test_a_size_can_be_asked_for_and_one_file_is_enough_for_the_rest(
    files: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert main([str(files[1]), str(files[2]), "--out", str(tmp_path / "two"), "--size", "120"]) == 0
    assert (tmp_path / "two" / "learners-30.svg").exists()
    capsys.readouterr()
    assert main([str(files[0]), "--out", str(tmp_path / "one")]) == 0
    assert capsys.readouterr().out.split() == [
        str(tmp_path / "one" / name) for name in ("latency-4.svg", "busbw-4.svg")
    ]
