"""Kernels of several phases in one launch: all of its programs run at once, and meet between two phases.

The driver starts them together (a cooperative launch) or refuses to, so that none waits for one that has not begun.
An exact top-k by magnitude needs one such launch, and finds the k-th magnitude's bits, eight, eight, eight and seven at
a time. Four readings count how often each value of the next bits occurs among what agrees in those before; a fifth
writes places. A program keeps to its tiles, its counts stay in registers. Counts are whole numbers, so the order of
threads does not matter.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching
from wirebench.compressors.kernels.selection import _keys

TOGETHER = {"launch_cooperative_grid": True, "num_warps": 8, "maxnreg": 128, **APART}
"""Options of a launch whose programs meet; two programs with 128 registers a thread fit on a multiprocessor."""
EACH = 2
"""Programs of a multiprocessor."""
TILE = 4096
"""Elements that a program reads at once."""
BINS = tl.constexpr(256)
"""Values of eight bits. A thread counts for each element what a warp holds of each 32nd bin, so that with eleven bits
counting would take a dozen times as long as reading.
"""
EXPONENT = tl.constexpr(23)
"""Where the first eight bits begin."""
ARRIVED, UNSOUND, TALLIES = (tl.constexpr(4 * BINS.value + number) for number in range(3))
"""Where, in a selection's numbers, behind the counts: programs that have met; whether an input was not finite; what
each program counted.
"""


def programs(device: torch.device) -> int:
    """Programs of a launch whose programs meet: the number that the device runs at once."""
    return EACH * torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def zeros(device: torch.device, more: int = 0) -> Tensor:
    """What a selection counts in, int32, and `more` zeros behind it."""
    numel = TALLIES.value + 2 * triton.next_power_of_2(programs(device)) + more
    return torch.zeros(numel, dtype=torch.int32, device=device)


@launching
def largest(x: Tensor, k: int, or_zeros: bool = False, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Places of the `k` elements of `x`, fp32, that are largest by magnitude, int64 (k,), ascending; and int32 (2,).

    The latter is how many were found, fewer than `k` where fewer are not zero, and the bits of the least magnitude of
    these. Places behind them are 0. Twin: `selection.top_k`.

    or_zeros  the first zeros are chosen, too, where fewer than `k` are not zero, so that `k` of `x.numel()` are found
    counts    what `zeros` has made; by default it is made here
    """
    counts = zeros(x.device) if counts is None else counts
    many, places, found = programs(x.device), x.new_empty(k, dtype=torch.int64), x.new_empty(2, dtype=torch.int32)
    _largest[(many,)](
        x, counts, places, found, x.numel(), k, LEAST=0 if or_zeros else 1, TILE=TILE,
        POWER=triton.next_power_of_2(many), **TOGETHER,
    )  # fmt: skip
    return places, found


@launching
def exponential(x: Tensor, sample: slice, logs: tuple[float, int, float], arrived: Tensor) -> Tensor:
    """The magnitude, fp32 (1,), that a share of a sample lies above, if what is left stage by stage is exponential;
    one launch. Twin: `thresholds._sidco`.

    logs     of a stage's share, the number of stages, of the last one's share
    arrived  int32 (1,), a 0
    """
    many, (log, stages, last) = programs(x.device), logs
    power = triton.next_power_of_2(many)
    parts = torch.empty((2 * stages, power), dtype=torch.float64, device=x.device)
    found, count = x.new_empty(1), len(range(x.numel())[sample])
    _exponential[(many,)](
        x, arrived, parts, found, count, sample.start, sample.step, stages, float(log), float(last),
        TILE=TILE, POWER=power, **TOGETHER,
    )  # fmt: skip
    return found


@launching
def apply(
    totals: Tensor,
    index: Tensor,
    grad: Tensor,
    residual: Tensor,
    velocity: Tensor | None,
    k: int,
    size: int,
) -> None:
    """Write the `k` largest of `totals`, (n,), over `size` into `grad` at their places `index`, (n,), and 0 elsewhere;
    NaN elsewhere where a total is not finite. Their places leave `residual` and `velocity`.

    Of bf16 totals what rounding to bf16 cuts off stays in `residual`. The rest is fp32, and `index` int32 or int64.

    Twin: `top_k`, `Feedback.sent_narrow` and `write_average`.
    """
    many, narrow = programs(grad.device), totals.dtype == torch.bfloat16
    sums = grad.new_empty(totals.numel()) if narrow else totals
    # Triton's interpreter reads bf16 as whole numbers only.
    _apply[(many,)](
        totals.view(torch.int16) if narrow else totals, sums, index, grad, residual,
        residual if velocity is None else velocity, zeros(grad.device), totals.numel(), grad.numel(), k, float(size),
        MASKED=velocity is not None, NARROW=narrow, TILE=TILE, POWER=triton.next_power_of_2(many), **TOGETHER,
    )  # fmt: skip


@triton.jit
def meet(arrived, number):
    """Wait for all programs, at the launch's meeting of this `number`, from 1; what they wrote before can be read."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="acq_rel")
    while tl.atomic_add(arrived, 0, sem="acq_rel") < number * tl.num_programs(0):
        pass
    tl.debug_barrier()


@triton.jit
def tiles_of(numel, TILE: tl.constexpr):
    """How many tiles each program reads; they are neighbours."""
    return tl.cdiv(tl.cdiv(numel, TILE), tl.num_programs(0))


@triton.jit
def _bin(counts, k, BINS: tl.constexpr):
    """The bin of the `k`-th from above, or of the last that there is, and its rank in that bin; -1 where all are 0."""
    bins = tl.arange(0, BINS)
    many = tl.load(counts + bins)
    k = tl.minimum(k, tl.sum(many, 0))
    above = tl.sum(many, 0) - tl.cumsum(many, 0)
    here = (above < k) & (above + many >= k)
    return tl.max(tl.where(here, bins, -1), 0), k - tl.sum(tl.where(here, above, 0), 0)


@triton.jit
def tally(counts, many):
    """Add what the program counted to what all have."""
    bins = tl.arange(0, BINS)
    tl.atomic_add(counts + bins, many, mask=many > 0, sem="relaxed")


@triton.jit
def first_bits(keys, LEAST: tl.constexpr = 1):
    """How often each value of the first eight bits occurs among keys from LEAST on: by default zeros do not count."""
    return tl.histogram(keys >> EXPONENT, BINS, mask=keys >= LEAST)


@triton.jit
def _next_bits(many, keys, prefix, BEGIN: tl.constexpr, BITS: tl.constexpr, LEAST: tl.constexpr):
    """`many`, and how often each value of the BITS bits from BEGIN on occurs among keys that begin with the prefix.

    Of most tiles none does after a few bits, which is seen sooner than counted.
    """
    agree = (keys >= LEAST) & ((keys >> (BEGIN + BITS)) == prefix)
    if tl.max(agree.to(tl.int32), 0) > 0:
        many += tl.histogram((keys >> BEGIN) & ((1 << BITS) - 1), BINS, mask=agree)
    return many


@triton.jit
def threshold(x, counts, numel, k, met, TILE: tl.constexpr, POWER: tl.constexpr, LEAST: tl.constexpr = 1):
    """The bits of the `k`-th magnitude; how many of those that equal it are chosen, and how many of these lie before
    the program's tiles; how many of all that are chosen lie there; and how many are chosen. Before: `met` meetings,
    and the first bits are counted. Four more follow.
    """
    program = tl.program_id(0)
    tiles = tiles_of(numel, TILE)
    prefix, k = _bin(counts, k, BINS)
    for turn in tl.static_range(1, 3):
        many = tl.zeros([BINS], tl.int32)
        for number in range(tiles):
            _, keys = _keys(x, program * tiles + number, numel, TILE)
            many = _next_bits(many, keys, prefix, EXPONENT - 8 * turn, 8, LEAST)
        tally(counts + turn * BINS, many)
        meet(counts + ARRIVED, met + turn)
        value, k = _bin(counts + turn * BINS, k, BINS)
        prefix = prefix * BINS + value
    many = tl.zeros([BINS], tl.int32)
    above = tl.zeros([TILE], tl.int32)
    for number in range(tiles):
        _, keys = _keys(x, program * tiles + number, numel, TILE)
        above += ((keys >= LEAST) & ((keys >> 7) > prefix)).to(tl.int32)
        many = _next_bits(many, keys, prefix, 0, 7, LEAST)
    tally(counts + 3 * BINS, many)
    meet(counts + ARRIVED, met + 3)
    last, wanted = _bin(counts + 3 * BINS, k, BINS)
    bins = tl.arange(0, BINS)
    tl.store(counts + TALLIES + program, tl.sum(above, 0) + tl.sum(tl.where(bins > last, many, 0), 0))
    tl.store(counts + TALLIES + POWER + program, tl.sum(tl.where(bins == last, many, 0), 0))
    meet(counts + ARRIVED, met + 4)
    others = tl.arange(0, POWER)
    above = tl.load(counts + TALLIES + others)
    equal = tl.load(counts + TALLIES + POWER + others)
    equal_before = tl.sum(tl.where(others < program, equal, 0), 0)
    begin = tl.sum(tl.where(others < program, above, 0), 0) + tl.minimum(equal_before, wanted)
    total = tl.sum(above, 0) + tl.minimum(tl.sum(equal, 0), wanted)
    return prefix * 128 + last, wanted, equal_before, begin, total


@triton.jit
def chosen_among(keys, kth, wanted, equal_before, LEAST: tl.constexpr = 1):
    """Which of a tile's keys are chosen, 1 or 0; and how many equal the `k`-th, chosen or not."""
    alike = ((keys == kth) & (keys >= LEAST)).to(tl.int32)
    rank = equal_before + tl.cumsum(alike, 0) - alike
    chosen = ((keys > kth) & (keys >= LEAST)) | ((alike > 0) & (rank < wanted))
    return chosen.to(tl.int32), tl.sum(alike, 0)


@triton.jit
def write_largest(x, counts, out, numel, k, TILE: tl.constexpr, POWER: tl.constexpr, LEAST: tl.constexpr = 1):
    """Write the places of the `k` largest of `x` to `out`, int64, ascending; return how many, and the least one's bits.

    Keys below LEAST are not chosen. Programs meet five times. Twin: `selection.top_k`.
    """
    program = tl.program_id(0)
    tiles = tiles_of(numel, TILE)
    many = tl.zeros([BINS], tl.int32)
    for number in range(tiles):
        _, keys = _keys(x, program * tiles + number, numel, TILE)
        many += first_bits(keys, LEAST)
    tally(counts, many)
    meet(counts + ARRIVED, 1)
    kth, wanted, equal_before, begin, total = threshold(x, counts, numel, k, 1, TILE, POWER, LEAST)
    for number in range(tiles):
        places, keys = _keys(x, program * tiles + number, numel, TILE)
        chosen, alike = chosen_among(keys, kth, wanted, equal_before, LEAST)
        tl.store(out + begin + tl.cumsum(chosen, 0) - chosen, places, mask=chosen > 0)
        equal_before += alike
        begin += tl.sum(chosen, 0)
    return total, kth


@triton.jit
def _largest(x, counts, out, found, numel, k, LEAST: tl.constexpr, TILE: tl.constexpr, POWER: tl.constexpr):
    total, kth = write_largest(x, counts, out, numel, k, TILE, POWER, LEAST)
    if tl.program_id(0) == 0:
        tl.store(found, total)
        tl.store(found + 1, kth)
    for start in range(total + tl.program_id(0) * TILE, k, tl.num_programs(0) * TILE):
        rest = start + tl.arange(0, TILE)
        tl.store(out + rest, tl.zeros([TILE], tl.int64), mask=rest < k)


@triton.jit(do_not_specialize=["start", "step"])
def _exponential(x, arrived, parts, found, count, start, step, stages, log, last,
                 TILE: tl.constexpr, POWER: tl.constexpr):  # fmt: skip
    program, programs = tl.program_id(0), tl.num_programs(0)
    other = tl.arange(0, POWER)
    bar = tl.full((), 0.0, tl.float64)
    for stage in range(stages):
        total = tl.zeros([TILE], tl.float64)
        many = tl.zeros([TILE], tl.float64)
        for number in range(program, tl.cdiv(count, TILE), programs):
            lane = (tl.zeros([TILE], tl.int64) + number) * TILE + tl.arange(0, TILE)
            size = tl.abs(tl.load(x + start + lane * step, mask=lane < count, other=0.0))
            here = (lane < count) & ((size > bar.to(tl.float32)) | (stage == 0))
            total += tl.where(here, size, 0.0).to(tl.float64)
            many += here.to(tl.float64)
        tl.store(parts + 2 * stage * POWER + program, tl.sum(total, 0))
        tl.store(parts + (2 * stage + 1) * POWER + program, tl.sum(many, 0))
        meet(arrived, stage + 1)
        total_of_all = tl.sum(tl.load(parts + 2 * stage * POWER + other, mask=other < programs, other=0.0), 0)
        many_of_all = tl.sum(tl.load(parts + (2 * stage + 1) * POWER + other, mask=other < programs, other=0.0), 0)
        of_stage = tl.where(stage == stages - 1, last, log)
        mean = total_of_all / tl.where(many_of_all > 0, many_of_all, 1.0)
        bar = tl.where(many_of_all > 0, bar - (mean - bar) * of_stage, bar)
    if program == 0:
        tl.store(found, bar.to(tl.float32))


@triton.jit
def _apply(totals, sums, index, grad, residual, velocity, counts, numel, length, k, size, MASKED: tl.constexpr,
           NARROW: tl.constexpr, TILE: tl.constexpr, POWER: tl.constexpr):  # fmt: skip
    program = tl.program_id(0)
    tiles = tiles_of(numel, TILE)
    many = tl.zeros([BINS], tl.int32)
    unsound = tl.zeros([TILE], tl.int32)
    for number in range(tiles):
        if NARROW:
            at = (tl.zeros([TILE], tl.int64) + program * tiles + number) * TILE + tl.arange(0, TILE)
            bits = tl.load(totals + at, mask=at < numel, other=0).to(tl.int32) << 16
            tl.store(sums + at, bits.to(tl.float32, bitcast=True), mask=at < numel)
            tl.debug_barrier()
        _, keys = _keys(sums, program * tiles + number, numel, TILE)
        many += first_bits(keys)
        unsound = tl.maximum(unsound, (keys >= 0x7F800000).to(tl.int32))
    tally(counts, many)
    tl.atomic_max(counts + UNSOUND, tl.max(unsound, 0), sem="relaxed")
    meet(counts + ARRIVED, 1)
    rest = tl.where(tl.load(counts + UNSOUND) > 0, float("nan"), 0.0) + tl.zeros([TILE], tl.float32)
    for number in range(program, tl.cdiv(length, TILE), tl.num_programs(0)):
        places = (tl.zeros([TILE], tl.int64) + number) * TILE + tl.arange(0, TILE)
        tl.store(grad + places, rest, mask=places < length)
    kth, wanted, equal_before, _begin, _total = threshold(sums, counts, numel, k, 1, TILE, POWER)
    for number in range(tiles):
        entries, keys = _keys(sums, program * tiles + number, numel, TILE)
        chosen, alike = chosen_among(keys, kth, wanted, equal_before)
        equal_before += alike
        places = tl.load(index + entries, mask=chosen > 0, other=0)
        values = tl.load(sums + entries, mask=chosen > 0, other=0.0)
        tl.store(grad + places, tl.div_rn(values, tl.zeros_like(values) + size), mask=chosen > 0)
        left = tl.zeros([TILE], tl.float32)
        if NARROW:
            exact = tl.load(residual + places, mask=chosen > 0, other=0.0)
            bits = exact.to(tl.int32, bitcast=True)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16  # to the nearest bf16, or the even one
            left = exact - bits.to(tl.float32, bitcast=True)
            left = tl.where(tl.abs(left) < float("inf"), left, 0.0)
        tl.store(residual + places, left, mask=chosen > 0)
        if MASKED:
            tl.store(velocity + places, tl.zeros([TILE], tl.float32), mask=chosen > 0)
