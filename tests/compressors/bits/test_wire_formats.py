"""Wire formats: numbers as `ml_dtypes` has them, scales as the standards' text and `torchao` have them."""

import warnings
from importlib import import_module
from math import floor, log2
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from tests.helpers import exchange, normal
from wirebench.compressors.bits import narrow
from wirebench.compressors.bits.narrow import (
    FORMATS,
    PLAIN,
    Format,
    Number,
    chunk_of,
    message_bytes,
    quantised,
    restored,
)
from wirebench.compressors.quantised_sum import QuantisedSum

THEIRS = {
    narrow.E4M3: ml_dtypes.float8_e4m3fn,
    narrow.E5M2: ml_dtypes.float8_e5m2,
    narrow.E2M3: ml_dtypes.float6_e2m3fn,
    narrow.E3M2: ml_dtypes.float6_e3m2fn,
    narrow.E2M1: ml_dtypes.float4_e2m1fn,
    narrow.INT8: np.int8,
    narrow.INT4: ml_dtypes.int4,
}
numbers = pytest.mark.parametrize("number", THEIRS, ids=[np.dtype(each).name for each in THEIRS.values()])
MX = ["mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4"]


def decoded(codes: Tensor, number: Number) -> Tensor:
    """What codes, a byte each, stand for."""
    packed = narrow._packed(codes.view(1, -1), number.bits)
    return narrow._standing_for(narrow._unpacked(packed, number.bits), number, torch.empty(1, codes.numel()))[0]


@numbers
def test_every_code_stands_for_what_it_should(number: Number) -> None:
    codes = torch.arange(1 << number.bits, dtype=torch.int64).to(torch.uint8)
    wanted = torch.from_numpy(codes.numpy().view(THEIRS[number]).astype(np.float32))
    wanted[wanted.abs() > number.largest] = -128 if number == narrow.INT8 else torch.nan  # infinity is not used
    if number == narrow.INT4:
        wanted = torch.tensor([*range(8), *range(-8, 0)], dtype=torch.float32)
    torch.testing.assert_close(decoded(codes, number), wanted, rtol=0, atol=0, equal_nan=True)


@numbers
def test_a_million_floats_are_rounded_as_they_should(number: Number) -> None:
    values = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0)) * number.largest / 3
    values *= torch.logspace(-6, 0, 1_000_000)
    values = values.clamp_(-number.largest, number.largest)
    halves = decoded(torch.arange(1 << (number.bits - 1), dtype=torch.int64).to(torch.uint8), number)
    halves = halves[halves.isfinite()]
    ties = (halves[1:] + halves[:-1]) / 2
    values[: ties.numel()], values[-ties.numel() :] = ties, -ties
    given = np.rint(values.numpy()) if not number.exponent else values.numpy()
    wanted = torch.from_numpy(given.astype(THEIRS[number]).astype(np.float32))
    codes, arriving = narrow._rounded(values.clone().view(1000, -1), number, keep=True)
    assert torch.equal(decoded(codes.view(-1), number), wanted)
    assert torch.equal(arriving.reshape(-1), wanted)


@pytest.mark.parametrize("form", FORMATS)
def test_what_a_format_can_say_arrives_as_it_was(form: Any) -> None:
    """Every finite number, at several scales that are powers of two."""
    own = FORMATS[form]
    table = decoded(torch.arange(1 << own.number.bits, dtype=torch.int64).to(torch.uint8), own.number)
    table = table[table.isfinite() & (table.abs() <= own.number.largest)]
    chunk = chunk_of(form, 64)
    whole = torch.zeros(-(-table.numel() // (chunk - 1)), chunk)
    whole[:, 0] = own.number.largest  # so that the scale is the one that is wanted
    places = torch.arange(table.numel())
    whole[places // (chunk - 1), 1 + places % (chunk - 1)] = table
    for factor in (2.0**-20, 1.0, 2.0**20):
        values = (whole * factor).view(-1)
        message = quantised(values.clone(), chunk, form, values.numel())
        assert torch.equal(restored([message], chunk, form, torch.empty_like(values)), values)


def by_the_text(block: list[float], own: Format) -> tuple[int, list[float]]:
    """The scale's byte and the numbers of a block of MX, by section 6.3 of the specification, one by one."""
    largest = max(abs(value) for value in block)
    exponent = floor(log2(largest)) - own.number.most if largest else -127
    exponent = max(exponent, -127)
    found = []
    for value in block:
        scaled = min(max(value / 2.0**exponent, -own.number.largest), own.number.largest)
        found.append(float(np.array(scaled, np.float64).astype(np.float32).astype(THEIRS[own.number])) * 2.0**exponent)
    return exponent + 127, found


@pytest.mark.parametrize("form", MX)
def test_blocks_of_mx_are_those_of_the_standards_text(form: Any) -> None:
    values = normal(1, 0, 3200)[0] * torch.logspace(-30, 30, 3200)
    values[64:96] = 0
    own = FORMATS[form]
    message = quantised(values.clone(), 32, form, 3200)
    arriving = restored([message], 32, form, torch.empty_like(values))
    for number, block in enumerate(values.double().view(-1, 32).tolist()):
        scale, wanted = by_the_text(block, own)
        assert message[number] == scale
        assert arriving[32 * number :][:32].tolist() == pytest.approx(wanted, rel=1e-7, abs=0)


def torchaos(module: str) -> Any:
    """A module of torchao: a second of imports, which collecting need not wait for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(f"torchao.prototype.mx_formats.{module}")


@pytest.mark.parametrize("form", MX)
def test_blocks_of_mx_are_torchaos(form: Any) -> None:
    to_mx = torchaos("mx_tensor").to_mx
    kinds = {"mxfp8": torch.float8_e4m3fn, "mxfp8_e5m2": torch.float8_e5m2, "mxfp4": torch.float4_e2m1fn_x2}
    kind = kinds.get(form) or ("fp6_e2m3" if form == "mxfp6" else "fp6_e3m2")
    values = normal(1, 1, 6400)[0] * torch.logspace(-20, 20, 6400)
    try:
        scales, theirs = to_mx(values.view(-1, 32), kind, 32)
    except (AssertionError, NotImplementedError):
        pytest.skip(f"torchao has no {form} on a CPU")
    message = quantised(values.clone(), 32, form, 6400)
    assert torch.equal(message[:200], scales.view(torch.uint8).view(-1))
    if form != "mxfp6" and form != "mxfp6_e3m2":
        assert torch.equal(message[200:], theirs.contiguous().view(torch.uint8).view(-1))


def test_blocks_of_nvfp4_are_torchaos() -> None:
    nvfp4 = torchaos("nvfp4_tensor")
    values = normal(1, 2, 4096)[0] * torch.logspace(-3, 3, 4096)
    top = nvfp4.per_tensor_amax_to_scale(values.abs().max())
    scales, theirs = nvfp4.nvfp4_quantize(values.view(-1, 64), 16, top)
    message = quantised(values.clone(), 16, "nvfp4", 4096)
    assert message[:4].view(torch.float32).item() == pytest.approx(top.item(), rel=1e-6)
    assert torch.equal(message[4:260], scales.contiguous().view(torch.uint8).view(-1))
    apart = message[260:] != theirs.contiguous().view(torch.uint8).view(-1)
    assert int(apart.sum()) <= 2, "their scale is rounded in another order"


def test_blocks_by_hand() -> None:
    """Largest 7: of e2m1 2^(2 - 2), and 7 becomes 6; of six bits e2m3 the same."""
    block = torch.zeros(32)
    block[:6] = torch.tensor([7.0, -3.3, 0.25, 0.26, -0.75, 5.0])
    message = quantised(block.clone(), 32, "mxfp4", 32)
    assert message[0] == 127
    assert message[1:4].tolist() == [0x7 | 0xD << 4, 0x0 | 0x1 << 4, 0xA | 0x6 << 4]
    message = quantised(block.clone(), 32, "mxfp6", 32)
    # 7 = 1.75 x 2^2, -3.25, 0.25, 0.25: codes 30, 32 + 21, 2, 2
    assert message[:4].tolist() == [127, 30 | (53 & 3) << 6, 53 >> 2 | (2 & 15) << 4, 2 >> 4 | 2 << 2]


@pytest.mark.parametrize("form", [*FORMATS, *PLAIN])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_all_ranks(form: Any, bad: float) -> None:
    given = normal(3, 0, 300)
    given[1][7] = bad
    results = exchange([QuantisedSum(form, feedback=False) for _ in range(3)], given)
    assert all(not result[7].isfinite() for result in results)
    assert all(torch.equal(result.nan_to_num(), results[0].nan_to_num()) for result in results)


@pytest.mark.parametrize("form", [each for each in (*FORMATS, *PLAIN) if each != "fp32"])
def test_stochastic_rounding_is_right_on_average(form: Any) -> None:
    """Of values that no scale saturates: each block has the largest number."""
    chunk = chunk_of(form, 64)
    values = torch.rand(max(4096, chunk), generator=torch.Generator().manual_seed(3)) * 2 - 1
    if form in FORMATS:
        values *= FORMATS[form].number.largest
        values.view(-1, chunk)[:, 0] = FORMATS[form].number.largest
    rng = torch.Generator().manual_seed(0)
    found = []
    for _ in range(100):
        message = quantised(values.clone(), chunk, form, values.numel(), keep=False, generator=rng)
        found.append(restored([message], chunk, form, torch.empty_like(values)).double())
    drawn = torch.stack(found)
    off = drawn.mean(0) - values.double()
    sigma = (drawn.var(0).sum() / 100).sqrt()
    assert float(off.norm()) == pytest.approx(float(sigma), rel=0.1)
    assert abs(float(off.sum())) < 4 * float(sigma)


@numbers
def test_the_highest_draw_leaves_the_largest_number(number: Number) -> None:
    values = torch.tensor([number.largest, 0.999 * number.largest])
    narrow._draw(values, number, torch.full((2,), 1 - 2**-23))
    assert values.tolist() == [number.largest, number.largest]


def test_a_rotation_lowers_the_error_of_few_bits_with_outliers() -> None:
    given = normal(4, 0, 4096)
    for each in given:
        each[::100] *= 30
    wanted = torch.stack(given).mean(0)
    off = {
        rotate: float(
            (
                exchange([QuantisedSum("int4", feedback=False, rotate=rotate) for _ in range(4)], given)[0] - wanted
            ).norm()
        )
        for rotate in (0, 256)
    }
    assert off[256] < 0.6 * off[0]
    plain = exchange([QuantisedSum("fp32", feedback=False, rotate=256) for _ in range(4)], given)[0]
    torch.testing.assert_close(plain, wanted, rtol=0, atol=1e-4)


@pytest.mark.parametrize("form", [*FORMATS, *PLAIN])
def test_bytes_are_what_the_format_says(form: Any) -> None:
    bits = {"fp32": 32, "bf16": 16, "fp16": 16, "mxfp8": 8.25, "mxfp8_e5m2": 8.25, "mxfp6": 6.25, "mxfp6_e3m2": 6.25,
            "mxfp4": 4.25, "nvfp4": 4.5, "fp8": 8.125, "fp8_e5m2": 8.125, "int8": 8.125, "int4": 4.125}  # fmt: skip
    chunk = chunk_of(form, 256)
    extra = 4 if form == "nvfp4" else 0
    assert message_bytes(1 << 16, chunk, form) == (1 << 16) * bits[form] / 8 + extra
