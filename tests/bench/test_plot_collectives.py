"""wirebench bench plot-collectives on cells that were made up."""

from pathlib import Path

import pytest

from tests import charts
from tests.charts import lines
from tests.cli.verbs import verb
from tests.flexreduce import cell, put_cells
from wirebench.bench.plot_collectives import (
    busbw_against_size,
    by_collective,
    dense_limit,
    draw,
    latency_against_learners,
    latency_against_size,
)

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
