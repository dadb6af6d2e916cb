"""Compile every kernel for a GPU, on a machine without one: python -m tests.compressors.kernels.compiled

Triton's interpreter runs what its compiler refuses. Launches are of vectors on the CPU, and nothing runs.
"""

import os
from typing import Any, get_args

os.environ.pop("TRITON_INTERPRET", None)

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from wirebench.compressors.bits.blocks import Run
from wirebench.compressors.bits.narrow import Form
from wirebench.compressors.common.lion import Lion
from wirebench.compressors.kernels import (
    bases,
    chunks,
    fields,
    narrow,
    segments,
    selection,
    sketches,
    steps,
    thin,
    votes,
)

TYPES = {torch.float32: "*fp32", torch.float64: "*fp64", torch.int32: "*i32", torch.int64: "*i64", torch.uint8: "*u8"}
compiled: list[str] = []


def compile_only(kernel: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """Compile in place of a launch; numbers are what a launch makes of them, but 1 is no constant."""
    options = {name: kwargs.pop(name) for name in list(kwargs) if name not in kernel.arg_names}
    signature = {}
    for name, value in zip(kernel.arg_names, args, strict=False):
        kind = TYPES[value.dtype] if isinstance(value, torch.Tensor) else "fp32" if isinstance(value, float) else "i32"
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
    for form in get_args(Form):
        message = torch.zeros(2, narrow.message_bytes(10_000, 100, form), dtype=torch.uint8)
        narrow.quantise(x, 100, form, message[0])
        narrow.restore(message, 100, form, x, 2, 3)
    selection.largest(x, 100)
    places = torch.zeros(11, dtype=torch.int64)
    chunks.choose(x, places[1:], places[1:], places, 4096, 64)
    for mode in ("forward", "write", "subtract", "signs"):
        chunks.transform(x, x, torch.zeros(6, 3, dtype=torch.int64), torch.zeros(65, 64, 64), mode)
    numbers = [torch.zeros(count, 4, dtype=torch.int64) for count in (6, 2, 2, 3)]
    for rank, added in ((4, None), (4, x), (100, x)):
        table, sizes = (
            thin.Table(numbers[0], numbers[1], numbers[2], numbers[3], x, rank),
            bases.Sizes(numbers[3], numbers[2], rank),
        )
        for product in (thin.to_left, thin.to_right):
            product(x, x, x, table, added, None if added is None else thin.Taken(0.5, narrow=True))
        thin.orthonormal(x, added, numbers[3], x, drop=added is None)
        thin.product(x, x, x, table, subtract=added is None, shaped=rank > 4)
        bases.orthonormal(x, sizes, x, drop=added is None)
        bases.sound(x, x, sizes, x, unit=added, divisor=2)
        steps.settle(x, numbers[0], x, 2, None if added is None else Lion(x, 0.9, 0.99))
    shift = torch.zeros(5, 10, dtype=torch.int64)
    for agree in (False, True):
        sketches.add(x, torch.zeros(5, 1_000), shift, torch.zeros(5, 10), torch.zeros(1_000))
        sketches.estimates(torch.zeros(5, 1_000), shift, torch.zeros(5, 10), torch.zeros(1_000), 10_000, agree)
    for more in (None, x):
        steps.begin(x, x, x, more, 0.9, more, slice(0, 9))
        steps.finish(x, x, more, x, (0.1, 0.2), 1e-8, 1.0, 2)
    steps.blend(x, x, x, 0.9, 0.99)
    ballot = votes.Ballot(x, 0.1, 0.5, 7)
    votes.choose(x, x, groups, ballot, [1.0] * 11, [2] * 11, bytes(2), 2_000, 2)
    found = votes.unite(x, groups, np.zeros((2, 11), np.int64))
    for velocity in (None, x):
        votes.take(x, velocity, found, 9, narrow=velocity is None)
    votes.write(x, found, x[:9], 2)
    votes.moments(x, x, groups, ballot)
    print(*sorted(set(compiled)))


if __name__ == "__main__":
    main()
