"""Errors of sums in few bits: the law holds where it should, and the tool says what it measured."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests import charts
from tests.cli.verbs import verb
from wirebench import collectives, compressors
from wirebench.bench.lossless import measured as measure_lossless
from wirebench.bench.sum_inputs import DRAWN, drawn, kept, trained
from wirebench.bench.sum_ways import WAYS
from wirebench.bench.sums import SumError, errors, figure, load
from wirebench.bench.virtual_sums import Energies, coded_sum
from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.wire import items_of
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Metered
from wirebench.compressors.bits import lossless
from wirebench.compressors.bits.coded import Coded
from wirebench.costmodel.sum_error import coded_energy
from wirebench.errors import UserError
from wirebench.exchange.advance import run
from wirebench.gradient.requests import Sum
from wirebench.planner import sums as shipped
from wirebench.topology.tree import Topology

ROOT = Path(__file__).resolve().parents[2]
main = verb("bench", "sums")


def measured(form: str, signal: float, ranks: list[int], ways: list[str]) -> dict[tuple[str, int], SumError]:
    """Errors of gradients that are noise, and `signal` times as much that all ranks share."""
    rng = torch.Generator().manual_seed(0)
    grads = torch.randn(max(ranks), 1 << 14, generator=rng) + signal * torch.randn(1 << 14, generator=rng)
    cells = errors(0, grads, [form], 64, ways, ranks, "nearest")
    return {(cell.way, cell.ranks): cell for cell in cells}


@pytest.mark.parametrize(("form", "within"), [("bf16", 0.1), ("int8", 0.1), ("mxfp6", 0.15), ("nvfp4", 0.2)])
def test_the_law_says_what_is_measured(form: str, within: float) -> None:
    """Of four bits less nearly: a number that is on the grid already, and a small one, are rounded to the former."""
    cells = measured(form, 0.0, [2, 8, 32], list(WAYS))
    assert len(cells) == 17, "hierarchies begin at four ranks"
    for cell in cells.values():
        assert cell.error == pytest.approx(cell.law, rel=within), cell


def test_what_ranks_share_is_rounded_alike_on_all_of_them() -> None:
    """Errors of gradients that are alike add up: more than the law, which takes them for independent."""
    cells = measured("int4", 20.0, [32], ["scatter"])
    assert cells["scatter", 32].error > 2 * cells["scatter", 32].law


def test_a_ring_s_error_grows_as_the_root_of_its_ranks_and_one_hop_s_does_not() -> None:
    cells = measured("int8", 0.0, [4, 64], ["one_hop", "ring", "tree"])
    growth = {way: cells[way, 64].error / cells[way, 4].error for way in ("one_hop", "ring", "tree")}
    # Roots of (1 + 63 / 64) / (1 + 3 / 4), of (63 / 2 + 1) / (3 / 2 + 1), and of (6 / 2 + 1) / (2 / 2 + 1).
    assert growth["one_hop"] == pytest.approx((127 / 64 / 1.75) ** 0.5, abs=0.03)
    assert growth["ring"] == pytest.approx((32.5 / 2.5) ** 0.5, rel=0.1)
    assert growth["tree"] == pytest.approx(2**0.5, rel=0.1)


@pytest.mark.parametrize("name", [name for name in collectives.available() if name != "native"])
def test_virtual_ranks_get_the_bits_of_a_job(name: str) -> None:
    topology = Topology.parse("3+3")
    for form, within in (("int8", ""), ("nvfp4", "bf16")):
        inside = compressors.wire(within) if within and name != "recursive_doubling" else None
        made = collectives.formatted(collectives.build(name), compressors.wire(form), inside)
        grads = torch.randn(6, 6 * 768, generator=torch.Generator().manual_seed(1))
        servers = [RequestExecutor(Metered(each), made, topology) for each in LocalHub(6).communicators]
        sums = run([server.serve(Sum(each.clone())) for server, each in zip(servers, grads, strict=True)])
        plan = made.plan(topology, items_of(made, grads.shape[1]).number)
        assert plan is not None
        assert all(torch.equal(torch.as_tensor(each), coded_sum(plan, grads)) for each in sums), form


@pytest.mark.parametrize("alike", [0.0, 0.3])
@pytest.mark.parametrize("way", list(WAYS))
def test_a_plan_tells_what_it_codes_without_gradients(way: str, alike: float) -> None:
    """Gradients with this product and of length 1 in each chunk: one's own place, and one that all share."""
    code, ranks, items = Coded("int8", 16), 8, 8
    chunk = math.sqrt(1 - alike) * torch.eye(ranks, code.unit)
    chunk[:, -1] = math.sqrt(alike)
    grads = chunk.repeat(1, items)
    plan = WAYS[way].plan(ranks, code, grads.shape[1])
    if not WAYS[way].gathers:
        plan = replace(plan, copy=())
    wanted, whole = Energies(plan, grads, WAYS[way].gathers), float(grads.double().sum(0).square().sum())
    found = coded_energy(plan, alike)
    assert found.between == pytest.approx(wanted.between / whole) and found.within == pytest.approx(
        wanted.within / whole
    )
    assert (found.within > 0) == (way == "hierarchical")


def test_the_laws_of_the_page_are_the_plan_s() -> None:
    """Sums of P ranks, of gradients that are noise and of those that are alike (docs/sums.md)."""
    for ranks in (2, 8, 64):
        laws = {"one_hop": 2 - 1 / ranks, "tree": math.log2(ranks) / 2 + 1, "ring": (ranks - 1) / 2 + 1}
        laws |= {"scatter": 1 - 1 / ranks, "halving_doubling": laws["tree"]}
        for way, law in laws.items():
            plan = WAYS[way].on(Topology.flat(ranks), Coded("int8"))
            assert coded_energy(plan, 0.0).error(0.01) == pytest.approx(math.sqrt(0.01 * law)), (way, ranks)
        for way, law in (("one_hop", 1 + 1 / ranks - 1 / ranks**2), ("ring", ranks / 3 + 1 / 2 + 1 / (6 * ranks))):
            plan = WAYS[way].on(Topology.flat(ranks), Coded("int8"))
            assert coded_energy(plan, 1.0).error(0.01) == pytest.approx(math.sqrt(0.01 * law)), (way, ranks)


def test_what_is_shipped_gives_the_laws_that_were_measured() -> None:
    """From a format's share and the ranks' correlation alone: within a twelfth of the law of the real gradients."""
    for name, unit in (("resnet20", "images"), ("gpt", "tokens")):
        known, (_, cells) = shipped.load(unit), load(ROOT / f"results/cpu-2core/sums/{name}.jsonl")
        ways = {cell.way for cell in cells if cell.ranks == 64} - {"hierarchical"}
        energies = {way: coded_energy(WAYS[way].on(Topology.flat(64), Coded("int8")), known.alike) for way in ways}
        for cell in cells:
            if cell.ranks == 64 and cell.way in energies:
                assert known.expected(energies[cell.way], cell.form, cell.form) == pytest.approx(cell.law, rel=0.08), cell
                assert known.measured(cell.form, cell.way, 64) == pytest.approx(cell.error, abs=1e-6)


def test_bytes_of_an_element_are_those_of_the_plan() -> None:
    cells = measured("int8", 0.0, [8], ["one_hop", "scatter", "ring", "tree"])
    bits = 8 + 32 / 64
    for way, shares in (("one_hop", 2 * 7 / 8), ("scatter", 7 / 8), ("ring", 2 * 7 / 8), ("tree", 3)):
        assert cells[way, 8].bytes == pytest.approx(shares * bits / 8, rel=0.01), way


def test_gradients_are_kept_in_a_file_and_are_those_of_the_batches(tmp_path: Path) -> None:
    """As many as asked for, from one model: four virtual ranks train, and eight gradients are of eight batches."""
    file, about = tmp_path / "g.safetensors", {"ranks": 8}
    grads = kept(file, about, lambda: trained("smoke", ["model.depth=8"], [0, 2], 8, 4096, tmp_path))
    assert {step: tuple(each.shape) for step, each in grads.items()} == {0: (8, 4096), 2: (8, 4096)}
    assert len({tuple(row.tolist()) for each in grads.values() for row in each[:, :50]}) == 16
    again = kept(file, about, lambda: pytest.fail("the file has them"))
    assert all(torch.equal(again[step], each) for step, each in grads.items())
    with pytest.raises(UserError, match="has gradients of other settings: ranks 8"):
        kept(file, {"ranks": 4}, dict)
    file.write_text("x")
    with pytest.raises(UserError, match="holds no gradients"):
        kept(file, about, dict)


def test_what_is_drawn_has_the_tails_of_its_distribution() -> None:
    found = {name: drawn(name, [3], 2, 1 << 16)[3] for name in DRAWN}
    tails = {name: float(each.pow(4).mean() / each.square().mean() ** 2) for name, each in found.items()}
    assert tails["normal"] == pytest.approx(3, rel=0.05) and tails["laplace"] == pytest.approx(6, rel=0.1)
    assert tails["sparse"] == pytest.approx(300, rel=0.2) and tails["student_t"] > 10
    assert torch.equal(found["normal"], drawn("normal", [3], 2, 1 << 16)[3])


def test_the_tool_writes_what_it_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--ranks", "4", "2", "2", "--steps", "0", "--sample", "2048", "--ways", "ring", "ring"]
    options += ["--forms", "bf16", "mxfp4"]
    assert main(["smoke", *options, "--json", str(tmp_path / "cells.jsonl"), "--figures", str(tmp_path)]) == 0
    header, *cells = map(json.loads, (tmp_path / "cells.jsonl").read_text().splitlines())
    assert header["config"] == "smoke" and [(c["form"], c["ranks"]) for c in cells] == [
        ("bf16", 2), ("bf16", 4), ("mxfp4", 2), ("mxfp4", 4),
    ]  # fmt: skip
    said = capsys.readouterr().out
    assert f"{cells[3]['error']:.3%}" in said and (tmp_path / "sums.svg").exists()
    ranks, shown = charts.lines(figure([SumError(**cell) for cell in cells], "smoke", ""))["mxfp4"]
    assert ranks == [2, 4] and shown == pytest.approx([100 * cell["error"] for cell in cells[2:]])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--forms", "fp7"], "--forms: fp7 is no wire format"),
        (["--ranks", "3"], "--ranks: powers of two, got 3"),
        (["--sample", "100"], "--sample: at least 16384 elements"),
        (["--chunk", "8192", "--sample", "1000000", "--steps", "0"], "--ranks: the gradient has 269"),
        (["--ranks", "2", "--ways", "hierarchical"], "--ways: hierarchical needs --ranks of 4 or more"),
        (["--steps", "-1"], "--steps: from 0 on, got -1"),
        (["--read", "no.jsonl", "--gradients", "g"], "--gradients: keeps gradients of a training"),
        (["--read", "no.jsonl"], "no.jsonl"),
        (["--chunk", "6"], "--chunk: needs a multiple of 4 up to 65536, got 6"),
        (["--chunk", "64", "--forms", "mxfp4", "bf16"], "--chunk: is of no use to mxfp4 and bf16, got 64"),
        (["--read", "no.jsonl", "--ranks", "2"], "--ranks: is of what is measured, and --read measures nothing"),
        (["--read", "no.jsonl", "--rounding", "stochastic"], "--rounding: is of what is measured"),
        (["model.depth=8", "--read", "no.jsonl"], "model.depth=8: is of what is measured"),
    ],
)
def test_mistakes_are_told(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_code_without_loss_gives_every_bit_back(dtype: torch.dtype) -> None:
    """Also NaNs with their payloads, infinities, both zeros and subnormal numbers, and no number at all."""
    rng = torch.Generator().manual_seed(0)
    whole = torch.int32 if dtype == torch.float32 else torch.int16
    any_bits = torch.randint(torch.iinfo(whole).min, torch.iinfo(whole).max, (5000,), generator=rng).to(whole)
    odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-45, -1e-39], dtype=dtype)
    for values in (any_bits.view(dtype), odd, odd[:0], torch.randn(70_000, generator=rng).to(dtype)):
        back = lossless.decoded(lossless.encoded(values), dtype)
        assert back.dtype == dtype and torch.equal(back.view(whole), values.view(whole))


def test_the_code_comes_near_the_entropy_of_exponents() -> None:
    """Of normal numbers an exponent has 2.1 to 2.6 bits; no code without loss wins more than the bound."""
    cells = {(each.form, each.of): each for each in measure_lossless(0, torch.randn(4, 1 << 17))}
    for (form, _), cell in cells.items():
        assert 2.1 < cell.exponent_bits < 2.7 and cell.other_bits > 7.9
        bits = {"fp32": 32, "bf16": 16}[form]
        assert cell.bound == pytest.approx(bits / (bits - 8 + cell.exponent_bits))
        assert 0.97 * cell.bound < cell.ratio <= cell.bound
        assert 0 < cell.pays_below < cell.encode_bytes_per_second
    assert 1.19 < cells["fp32", "gradient"].bound < 1.24 and 1.45 < cells["bf16", "gradient"].bound < 1.6
