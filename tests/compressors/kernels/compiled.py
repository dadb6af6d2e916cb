"""Compile every kernel for a GPU, on a machine without one: python -m tests.compressors.kernels.compiled

Triton's interpreter runs what its compiler refuses. Launches are of vectors on the CPU, and nothing runs.
"""

import os
from typing import Any
from unittest.mock import patch

os.environ.pop("TRITON_INTERPRET", None)

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from wirebench.compressors.bits.blocks import Groups, Run
from wirebench.compressors.bits.narrow import FORMATS, WIDE
from wirebench.compressors.common.lion import Lion
from wirebench.compressors.kernels import (
    bases,
    chunk_messages,
    chunks,
    entries,
    fields,
    frequencies,
    index_codes,
    merges,
    momentum,
    narrow,
    region_messages,
    segments,
    selection,
    sketches,
    steps,
    tables,
    thin,
    together,
    votes,
)

TYPES = {
    torch.float16: "*fp16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.int16: "*i16", torch.int32: "*i32", torch.int64: "*i64",
    torch.uint8: "*u8",
}  # fmt: skip
compiled: list[str] = []


def compile_only(kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """Compile in place of a launch; numbers are what a launch makes of them, but 1 is no constant."""
    options = {name: kwargs.pop(name) for name in list(kwargs) if name not in kernel.arg_names}
    signature = {}
    for name, value in zip(kernel.arg_names, args, strict=False):
        whole = "i64" if isinstance(value, int) and value >= 1 << 31 else "i32"
        kind = TYPES[value.dtype] if isinstance(value, torch.Tensor) else "fp32" if isinstance(value, float) else whole
        signature[name] = kind
    signature |= dict.fromkeys(kwargs, "constexpr")
    compile(ASTSource(kernel, signature, constexprs=kwargs), target=GPUTarget("cuda", 90, 32), options=options)
    compiled.append(kernel.__name__)


def main() -> None:
    """Every launch once; prints the kernels' names."""
    JITFunction.run = compile_only
    x, groups = torch.zeros(10_000), (Run(9_000, 1), Run(100, 10))
    for kind in ("largest", "squares", "magnitudes", "means", "spread", "sides"):
        segments.reduced(x, groups, kind)
    segments.limited(x, groups, 2.5)
    scales, words = torch.zeros(2, 11), torch.zeros(2, 5_000, dtype=torch.int32)
    row = torch.zeros(4096, dtype=torch.int32), torch.zeros(9, 2, dtype=torch.int32)
    for noise, limits, wide in ((row, None, (Run(512, 20),)), (None, scales[0], groups)):
        fields.encode_levels(
            x, wide, scales[0], words[0], levels=7, least_scale=1e-36, base=8, width=4, noise=noise, above=1 << 29,
            feedback=limits is None, limits=limits, inside=0.9,
        )  # fmt: skip
    for each in (False, True):
        fields.decode_levels(words, groups, scales, x, levels=7, width=4, each=each)
    for low in (scales, None):
        pair = scales[0], low
        fields.encode_signs(x, groups, words[0], pair=pair, zeros_are_negative=True, width=1, base=0)
        fields.decode_signs(words, groups, scales, low, x, times=0 if low is None else 2)
    fields.encode_signs(x, groups, words, pair=pair, zeros_are_negative=False, width=1, base=0, share=5_024)
    fields.decode_shares(words, groups, scales, torch.zeros(2, dtype=torch.int64), x, 5_024, 2)
    fields.decode_vote(words, groups, scales[0], x, plus=1.0, width=3)
    for dtype, number in ((torch.float32, None), (torch.float16, WIDE["fp16"]), (torch.bfloat16, WIDE["bf16"])):
        narrow.cast(x, torch.zeros(20_000, dtype=dtype), number, x if number else x[:9], row if number else None)
    message = torch.zeros(2, 50_000, dtype=torch.uint8)
    for own in FORMATS.values():
        for noise in (None, row):
            narrow.quantise(x, 100, own, message, 50, message, x, x if noise is None else x[:9], noise)
        narrow.restore(message, message, 100, own, x, 2, 3)
    sparse(x)
    low_rank(x)
    sketched(x)
    votes_of(x, groups)
    print(*sorted(set(compiled)))


def sparse(x: torch.Tensor) -> None:
    """Launches that sparse methods need."""
    for nesterov in (False, True):
        momentum.accumulate(x, x, x, 0.9, nesterov)
        momentum.accumulate_clipped(x, x if nesterov else None, x, 0.9, nesterov, 1.0)
        slices = momentum.slices_of(((0, 9), (20, 5_000)), x.device)
        momentum.put_pieces(
            x, slices, momentum.take_pieces(x, slices, 4_989), 2, x if nesterov else None, 0.9, nesterov
        )
    together.largest(x, 100)
    together.largest(x, 100, or_zeros=True)
    # It launches the second of its kernels where the first has found something.
    with patch.object(torch.Tensor, "cpu", lambda tallies: tallies.new_ones(tallies.shape)):
        selection.above(x, 1)
    selection.sums(x)
    places, bits, arrived = (torch.zeros(11, dtype=t) for t in (torch.int64, torch.uint8, torch.int32))
    together.exponential(x, slice(1, None, 3), (-1.4, 3, -2.0), arrived)
    for dtype in entries.KINDS:
        values = torch.zeros(11, dtype=dtype)
        entries.take(x, places, values, places=places.int(), arriving=x, rest=x, clear=x)
        entries.take(x, places.int(), values, flags=torch.zeros(4, dtype=torch.int32))
        entries.place(x, places, values, 3)
        for listed in (None, (torch.zeros(2, 9, dtype=torch.int32), torch.zeros(4, 2, dtype=torch.int64))):
            merges.merge(x, [torch.zeros(80, dtype=torch.uint8)] * 2, dtype, 9, listed)
        entries.average(x, [torch.zeros(80, dtype=torch.uint8)] * 3, dtype, 3)
    for index in (places, places.int()):
        index_codes.bitmaps(index[None], [11], 100)
        with patch.object(torch.Tensor, "cpu", lambda totals: totals.new_ones(totals.shape)):
            index_codes.gaps(index)
        index_codes.gaps_at_once(index, arrived)
    index_codes.gaps_of_bits(bits, 100, torch.zeros(108, dtype=torch.uint8), arrived, arrived, 9, bits)
    for heads in (None, [8, 8]):
        index_codes.listed(arrived, [bits] * 2, 2, heads, [0, 5])
    for as_gaps in (False, True):
        index_codes.places(x, [torch.zeros(80, dtype=torch.uint8)] * 3, [9, 5, 3], as_gaps)
    for kept in (False, True):
        entries.put_back(x, places, x, places, kept)
    chunks.choose(x, places[1:], places[1:], places, 4096, 64)
    for thresholds in ([1], [1, 2, 3, 4, 5, 6]):
        for dtype in entries.KINDS:
            with patch.object(torch.Tensor, "cpu", lambda tallies: tallies.new_ones(tallies.shape)):
                above = region_messages.Above(x, [0, 5_000, 10_000], thresholds)
                for indices in ("int32", "bitmap", "delta"):
                    above.messages(0, dtype, indices, x, arrived)
    region_messages.keep_rest_of(x, places, x, [torch.zeros(80, dtype=torch.uint8)] * 2, [0, 50], torch.float32)
    blocks, cosines = torch.zeros(4, 3, dtype=torch.int64), torch.zeros(65, 64, 64)
    for dtype in (torch.float32, torch.bfloat16):
        message = frequencies.send(x, x, 0.9, blocks, places, 64, cosines, dtype)
        frequencies.receive(x, [message] * 2, blocks, places, 64, 32, cosines, dtype)
    message = chunk_messages.with_codes(x, places, places[1:], places, places, places, places, 64, 6.0)
    chunk_messages.decode_codes(x, [message] * 2, places[1:], places[1:], places, places, 10, 64, 4096)


def low_rank(x: torch.Tensor) -> None:
    """Launches that factors need."""
    numbers = [torch.zeros(count, 4, dtype=torch.int64) for count in (6, 2, 2, 3)]
    for rank, added in ((4, None), (4, x), (100, x)):
        table, sizes = (
            thin.Table(numbers[0], numbers[1], numbers[2], numbers[3], x, rank),
            bases.FactorSizes(numbers[3], numbers[2], rank),
        )
        for product in (thin.to_left, thin.to_right):
            product(x, x, x, table, added, None if added is None else thin.Taken(0.5, narrow=True))
        for each in (1, 16):
            thin.orthonormal(x, added, numbers[3], each, x, drop=added is None)
        thin.product(x, x, x, table, subtract=added is None, shaped=rank > 4)
        bases.orthonormal(x, sizes, x, drop=added is None)
        bases.sound(x, x, sizes, x, unit=added, divisor=2)
        steps.settle(x, numbers[0], x, 2, None if added is None else Lion(x, 0.9, 0.99))
    for more in (None, x):
        steps.begin(x, x, x, more, 0.9, more, slice(0, 9))
        steps.finish(x, x, more, x, (0.1, 0.2), 1e-8, 1.0, 2, more)
    steps.blend(x, x, x, 0.9, 0.99)


def sketched(x: torch.Tensor) -> None:
    """Launches that sketches need."""
    places = torch.zeros(11, dtype=torch.int64)
    shift, narrower = torch.zeros(3, 10, dtype=torch.int64), torch.zeros(10_000, dtype=torch.int32)
    hash, sketch, gaps = (shift, torch.zeros(3, 10), torch.zeros(1_000)), torch.zeros(3, 1_000), places[:0]
    for agree in (False, True):
        sketches.sketch(x, hash, 1_000)
        sketches.estimates(sketch, hash, 10_000, agree)
        sketches.find(sketch, hash, 10_000, agree, gaps, 100, x if agree else None)
        sketches.apply(sketch, hash, x, gaps, 100, 2, sketch if agree else None)
        together.apply(x.bfloat16() if agree else x, places if agree else narrower, x, x, x if agree else None, 100, 2)
    tables.fill(x, 100, hash, 1_000)
    for key_type in (torch.int32, torch.int64):
        keys = torch.zeros(3, 1_000, dtype=key_type)
        layout = 3, 5, 7, 1 << 14, 1 << (30 if key_type == torch.int32 else 62), 10, 10_000, 1
        tables.fill(x, 100, hash, 1_000, (keys, layout))
        _, counts, state, arrived = tables.peel(sketch, keys, hash, layout, 10_000, 256)
    tables.flag(counts, arrived, *sketches.find(sketch, hash, 10_000, True, gaps, 100), layout)
    tables.average(x, x, counts, state, 2, x, places, state)


def votes_of(x: torch.Tensor, groups: Groups) -> None:
    """Launches that importance-weighted pruning needs."""
    ballot = votes.Ballot(x, 0.1, 0.5, 7)
    for spread in (None, torch.zeros(1_250, dtype=torch.uint8)):
        votes.choose(x, x, groups, ballot, [1.0] * 11, [2] * 11, bytes(2), 2_000, 2, spread)
    found = votes.unite(x, groups, np.zeros((2, 11), np.int64), [])
    votes.unite(x, groups, np.zeros((2, 11), np.int64), [torch.zeros(9, dtype=torch.uint8)])
    for velocity in (None, x):
        last = None if velocity is None else torch.zeros(10_000, dtype=torch.int32)
        votes.take(x, velocity, found, 9, velocity is None, last, 5)
    votes.write(x, found, x[:9], 2)
    votes.moments(x, x, groups, ballot)


if __name__ == "__main__":
    main()
