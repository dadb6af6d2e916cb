"""Errors of sums in few bits: the law holds where it should, and the tool says what it measured."""

import json
from pathlib import Path

import pytest
import torch

from tests import charts
from tests.cli.verbs import verb
from wirebench.bench.sums import WAYS, SumError, errors, figure

main = verb("bench", "sums")


def measured(form: str, signal: float, ranks: list[int], ways: list[str]) -> dict[tuple[str, int], SumError]:
    """Errors of gradients that are noise, and `signal` times as much that all ranks share."""
    rng = torch.Generator().manual_seed(0)
    grads = torch.randn(max(ranks), 1 << 14, generator=rng) + signal * torch.randn(1 << 14, generator=rng)
    cells = errors(0, grads, form, 64, ways, ranks, "nearest")  # type: ignore[arg-type]
    return {(cell.way, cell.ranks): cell for cell in cells}


@pytest.mark.parametrize(("form", "within"), [("bf16", 0.1), ("int8", 0.1), ("mxfp6", 0.15), ("nvfp4", 0.2)])
def test_the_law_says_what_is_measured(form: str, within: float) -> None:
    """Of four bits less nearly: a number that is on the grid already, and a small one, are rounded to the former."""
    cells = measured(form, 0.0, [2, 8, 32], list(WAYS))
    assert len(cells) == 14, "hierarchies begin at four ranks"
    for cell in cells.values():
        assert cell.error == pytest.approx(cell.law, rel=within), cell


def test_what_ranks_share_is_rounded_alike_on_all_of_them() -> None:
    """Errors of gradients that are alike add up: more than the law, which takes them for independent."""
    cells = measured("int4", 20.0, [32], ["scatter"])
    assert cells["scatter", 32].error > 2 * cells["scatter", 32].law


def test_a_ring_s_error_grows_as_the_root_of_its_ranks_and_one_hop_s_does_not() -> None:
    cells = measured("int8", 0.0, [4, 64], ["one_hop", "ring", "tree"])
    growth = {way: cells[way, 64].error / cells[way, 4].error for way in ("one_hop", "ring", "tree")}
    # Roots of 2 / 2, of (63 / 2 + 1) / (3 / 2 + 1), and of (6 / 2 + 1) / (2 / 2 + 1).
    assert growth["one_hop"] == pytest.approx(1.0, abs=0.05)
    assert growth["ring"] == pytest.approx((32.5 / 2.5) ** 0.5, rel=0.1)
    assert growth["tree"] == pytest.approx(2**0.5, rel=0.1)


def test_the_tool_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--ranks", "2", "4", "--steps", "0", "--sample", "2048", "--forms", "bf16", "mxfp4", "--ways", "ring"]
    assert main(["smoke", *options, "--json", str(tmp_path / "cells.jsonl"), "--figures", str(tmp_path)]) == 0
    header, *cells = map(json.loads, (tmp_path / "cells.jsonl").read_text().splitlines())
    assert header["config"] == "smoke" and [(c["form"], c["ranks"]) for c in cells] == [
        ("bf16", 2), ("bf16", 4), ("mxfp4", 2), ("mxfp4", 4),
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert f"{cells[3]['error']:.3%}" in said and (tmp_path / "sums.svg").exists()
    ranks, drawn = charts.lines(figure([SumError(**cell) for cell in cells], "smoke", ""))["mxfp4"]
    assert ranks == [2, 4] and drawn == pytest.approx([100 * cell["error"] for cell in cells[2:]])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--forms", "fp7"], "--forms: fp7 is no wire format"),
        (["--ranks", "3"], "--ranks: powers of two, got 3"),
        (["--sample", "100"], "--sample: at least 16384 elements"),
        (["--chunk", "8192", "--sample", "1000000", "--steps", "0"], "--ranks: the gradient has 269"),
        (["--ranks", "2", "--ways", "hierarchical"], "--ways: hierarchical needs --ranks of 4 or more"),
        (["--steps", "-1"], "--steps: from 0 on, got -1"),
    ],
)
def test_mistakes_are_told(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", *options]) == 2
    assert said in capsys.readouterr().err
