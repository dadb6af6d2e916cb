"""What coding without loss saves, and at which rate of the link that pays: the exponents of gradients, and of sums."""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from wirebench.compressors.bits import lossless
from wirebench.utils.console import columns, console

REPEATS = 5
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Lossless:
    """Numbers of one kind, coded without loss by one core.

    of             "gradient", of one rank, or "sum" of `ranks` ranks
    exponent_bits  entropy of an exponent; other_bits: of the sign and the mantissa's first seven bits, at most 8
    bound, ratio   bytes of the numbers over the bytes of the best code of exponents, and of this one's message
    encode_bytes_per_second, decode_bytes_per_second  bytes of the numbers, not of messages; medians
    """

    step: int
    form: str
    of: str
    ranks: int
    exponent_bits: float
    other_bits: float
    bound: float
    ratio: float
    encode_bytes_per_second: float
    decode_bytes_per_second: float

    @property
    def pays_below(self) -> float:
        """Bytes per second of the link below which one hop of many ranks gains, if nothing overlaps.

        A rank sends its gradient and, share by share, the sum; it codes both, a share of the sum, and decodes twice.
        """
        seconds = 1 / self.encode_bytes_per_second + 2 / self.decode_bytes_per_second
        return 2 * (1 - 1 / self.ratio) / seconds


def measured(step: int, grads: Tensor) -> Iterator[Lossless]:
    """A gradient of fp32 (ranks, n), and the sum of all, as fp32 and as bf16 numbers."""
    for form, dtype in DTYPES.items():
        for of, ranks, values in (("gradient", 1, grads[0]), ("sum", len(grads), grads.sum(0))):
            numbers = values.to(dtype)
            encode, decode, message = _timed(numbers)
            exponent, other = lossless.entropy_bits(numbers)
            yield Lossless(
                step, form, of, ranks, exponent, other, lossless.bound(dtype, exponent),
                numbers.nbytes / len(message), numbers.nbytes / encode, numbers.nbytes / decode,
            )  # fmt: skip


def _timed(numbers: Tensor) -> tuple[float, float, bytes]:
    """Median seconds to code and to decode, and the message."""
    times = []
    message = lossless.encoded(numbers)
    for _ in range(REPEATS):
        begin = time.perf_counter()
        message = lossless.encoded(numbers)
        middle = time.perf_counter()
        back = lossless.decoded(message, numbers.dtype)
        times.append((middle - begin, time.perf_counter() - middle))
        assert torch.equal(back.view(torch.uint8), numbers.view(torch.uint8)), "a code without loss"
    encode, decode = (statistics.median(each) for each in zip(*times, strict=True))
    return encode, decode, message


def show(rows: list[Lossless]) -> None:
    """A row for each kind of numbers."""
    heads = ("step", "lossless", "of", "exponent bits", "other bits of 8", "bound", "ratio", "encode MB/s",
             "decode MB/s", "pays below Gbit/s")  # fmt: skip
    shown = columns(heads, left=("lossless", "of"))
    for row in rows:
        shown.add_row(
            str(row.step), row.form, row.of if row.ranks == 1 else f"{row.of} of {row.ranks}",
            f"{row.exponent_bits:.2f}", f"{row.other_bits:.2f}", f"{row.bound:.3f}", f"{row.ratio:.3f}",
            f"{row.encode_bytes_per_second / 1e6:,.0f}", f"{row.decode_bytes_per_second / 1e6:,.0f}",
            f"{8e-9 * row.pays_below:.2f}",
        )  # fmt: skip
    console(140).print(shown)
    print("One core; `pays below`: the rate of a link in one hop of many ranks, if coding hides behind nothing.")
