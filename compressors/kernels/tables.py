"""Tables of chosen entries: sketches of the largest, and invertible look-up tables, which are filled and peeled.

Several entries add to one cell, in a fixed order. Programs list the entries of every cell, in any order. Then one lane
adds up a list, the smallest place first. A list is a head, the number of an entry plus 1, and
each entry's next; 0 ends it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from wirebench.compressors.kernels import APART, launching, together
from wirebench.compressors.kernels.sketches import Hash, cells_of
from wirebench.compressors.kernels.together import ARRIVED, TOGETHER, meet, write_largest
from wirebench.compressors.kernels.votes import BYTES, Found, shares

BLOCK = 512
"""Entries, or cells, that a program handles at once."""
GOLDEN = tl.constexpr(0x9E3779B1)
LAST = tl.constexpr(1 << 62)
"""Above all places."""


Numbers = tuple[int, ...]
"""Of a `LookupTable`: factor, shift, inverse, modulus of the permutation; one, check_bits, numel, size of keys."""


@launching
def fill(
    x: Tensor, k: int, hash: Hash, columns: int, keys: tuple[Tensor, Numbers] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The table, (rows, columns), of the `k` largest entries of `x` by magnitude; their places, int64 (k,), ascending,
    and how many there are, int32 (1,). With `keys`, zeros in int32 or int64 like the table, places are permuted, and
    their keys are added.

    Twin: `top_k` and `CountSketch.sketch_entries`, or `LookupTable.fill`.
    """
    rows, blocks = hash[0].shape
    counts, at_once = together.zeros(x.device, rows * columns), together.programs(x.device)
    places, found = x.new_empty(k, dtype=torch.int64), x.new_empty(1, dtype=torch.int32)
    table, nexts = x.new_empty(rows, columns), x.new_empty((rows, k), dtype=torch.int32)
    sums, (factor, shift, _, modulus, one, check_bits, *_) = keys or (table, (0,) * 8)
    _fill[(at_once,)](
        x, counts, places, found, *hash, counts[-rows * columns :], nexts, x.new_empty(rows, k), table, sums,
        x.numel(), k, columns, blocks, factor, shift, modulus, one, check_bits, KEYS=keys is not None, ROWS=rows,
        BLOCK=BLOCK, TILE=together.TILE, POWER=triton.next_power_of_2(at_once), **TOGETHER,
    )  # fmt: skip
    return table, places, found


@launching
def peel(
    table: Tensor, keys: Tensor, hash: Hash, numbers: Numbers, numel: int, most: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Take the entries out of a look-up table and its keys, in up to `most` passes; left is what they still hold.

    Returns, by place, the sum of its values and how often it was taken out, less how often it was put back, fp32 and
    int32 (numel,); and int32 (3,): 1 where the table was not finite, where keys are left, where a sum is not finite.
    And int32 (1,), a 0 for `flag`. Twin: `LookupTable.peel`.
    """
    (rows, columns), cells = table.shape, table.numel()
    lengths = [1, 1, 3, most + 1, cells, numel, numel]
    zeros = torch.zeros(sum(lengths), dtype=torch.int32, device=table.device)
    arrived, nobody, state, taken, heads, counts, sums = zeros.split(lengths)
    nexts, each = (table.new_empty(many, dtype=torch.int32) for many in (rows * cells, cells))
    _peel[(together.programs(table.device),)](
        table, keys, *hash, arrived, state, taken, heads, nexts, table.new_empty(rows * cells),
        table.new_empty(2 * cells, dtype=torch.int64), each, table.new_empty(cells), sums.view(torch.float32), counts,
        columns, hash[0].shape[1], most, *numbers, ROWS=rows, BLOCK=BLOCK, **TOGETHER,
    )  # fmt: skip
    return sums.view(torch.float32), counts, state, nobody


@launching
def flag(counts: Tensor, arrived: Tensor, places: Tensor, state: Tensor, numbers: Numbers) -> Found:
    """The places that `peel` has found, by its `counts`, and those that `find` has found in what is left; one launch.

    arrived        the 0 that `peel` gives; counts: become 1 at the latter
    places, state  what `find` gives, of permuted places

    Twins: `LookupTable.largest` and `Tensor.unique`.
    """
    numel, device = counts.numel(), counts.device
    each, parts = shares(triton.cdiv(numel, 8 * BYTES))
    found = Found(
        torch.empty(numel, dtype=torch.uint8, device=device), torch.empty(parts, dtype=torch.int32, device=device),
        torch.empty(2, device=device),
    )  # fmt: skip
    _, shift, inverse, modulus, *_ = numbers
    _flag[(together.programs(device),)](
        counts, arrived, places, state, *found, numel, shift, inverse, modulus, each, parts,
        BLOCK=BLOCK, TILE=8 * BYTES, **TOGETHER,
    )  # fmt: skip
    return found


@launching
def average(
    grad: Tensor, sums: Tensor, counts: Tensor, state: Tensor, size: int,
    residual: Tensor, places: Tensor, found: Tensor
) -> None:  # fmt: skip
    """Write the sums that `peel` has found over `size` into `grad`, and 0 elsewhere; NaN everywhere else where one is
    not finite. The places that `fill` has found leave the residual. Twin: `write_average` and `Feedback.sent`.
    """
    _average[(triton.cdiv(grad.numel(), 1024),)](
        grad, sums, counts, state, residual, places, found, grad.numel(), float(size), BLOCK=1024, **APART
    )


@triton.jit
def _listed(entry, base, cell, value, inside, heads, nexts, signed):
    """Put entries into the lists of their cells; `base` is where the row's entries begin."""
    before = tl.atomic_xchg(heads + cell, entry + 1, mask=inside, sem="relaxed")
    tl.store(nexts + base + entry, before, mask=inside)
    tl.store(signed + base + entry, value, mask=inside)


@triton.jit
def _added(total, head, base, nexts, signed, places):
    """`total` and what the cells' lists hold, the smallest of `places` first."""
    last = tl.full(head.shape, -1, tl.int64)
    going = head > 0
    while tl.max(going.to(tl.int32), 0) > 0:
        at = tl.where(going, head, 0)
        best = tl.full(head.shape, LAST, tl.int64)
        best_at = tl.zeros(head.shape, tl.int32)
        while tl.max(at, 0) > 0:
            place = tl.load(places + at - 1, mask=at > 0, other=0)
            better = (at > 0) & (place > last) & (place < best)
            best = tl.where(better, place, best)
            best_at = tl.where(better, at, best_at)
            at = tl.load(nexts + base + at - 1, mask=at > 0, other=0)
        going = best_at > 0
        value = tl.load(signed + base + best_at - 1, mask=going, other=0.0)
        total = tl.where(going, total + value, total)
        last = tl.where(going, best, last)
    return total


@triton.jit
def _checks(place, check_bits):
    return ((place * GOLDEN) >> 15) & _mask(place, check_bits)


@triton.jit
def _mask(like, check_bits):
    return ((like * 0 + 1) << check_bits) - 1


@triton.jit
def _key(place, columns, one, check_bits):
    """What a place adds to its cells' keys."""
    return ((place // columns) << check_bits) + _checks(place, check_bits) + one


@triton.jit(do_not_specialize=["factor", "shift"])
def _fill(x, counts, chosen, found, shifts, signs, place_signs, heads, nexts, signed, table, keys,
          numel, k, columns, blocks, factor, shift, modulus, one, check_bits, KEYS: tl.constexpr,
          ROWS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, POWER: tl.constexpr):  # fmt: skip
    many, _kth = write_largest(x, counts, chosen, numel, k, TILE, POWER)
    if tl.program_id(0) == 0:
        tl.store(found, many)
    meet(counts + ARRIVED, 6)
    step = tl.num_programs(0) * BLOCK
    for start in range(tl.program_id(0) * BLOCK, many, step):
        entry = start + tl.arange(0, BLOCK)
        inside = entry < many
        place = tl.load(chosen + entry, mask=inside, other=0)
        value = tl.load(x + place, mask=inside, other=0.0)
        if KEYS:
            place = (place * factor + shift) & (modulus - 1)
        for row in tl.static_range(ROWS):
            cell, sign = cells_of(place, row, inside, shifts, signs, place_signs, columns, blocks)
            _listed(entry, row * k, row * columns + cell, sign * value, inside, heads, nexts, signed)
            if KEYS:
                key = _key(place, columns, one, check_bits).to(keys.dtype.element_ty)
                tl.atomic_add(keys + row * columns + cell, key, mask=inside, sem="relaxed")
    meet(counts + ARRIVED, 7)
    for start in range(tl.program_id(0) * BLOCK, ROWS * columns, step):
        cell = start + tl.arange(0, BLOCK)
        inside = cell < ROWS * columns
        head = tl.load(heads + cell, mask=inside, other=0)
        total = _added(tl.zeros([BLOCK], tl.float32), head, (cell // columns) * k, nexts, signed, chosen)
        tl.store(table + cell, total, mask=inside)


@triton.jit
def _alone(keys, row, column, inside, shifts, columns, blocks, shift, inverse, modulus, one, check_bits, numel, size):
    """Of cells: the place that each shows, permuted; its count, below 0 for one to put back; whether it shows one."""
    key = tl.load(keys + row * columns + column, mask=inside, other=0).to(tl.int64)
    side = tl.where(key < 0, -1, 1)
    key = key * side
    count = key // one
    total = key - count * one
    usual = inside & (count > 0) & (count <= size)
    count = tl.where(usual, count, 1)
    code = total // count
    block = code >> check_bits
    right = usual & (block < blocks) & (code * count == total)
    within = column - tl.load(shifts + row * blocks + block, mask=right, other=0)
    place = block * columns + tl.where(within < 0, within + columns, within)
    right = right & (place < modulus) & (_checks(place, check_bits) == (code & _mask(code, check_bits)))
    right = right & ((((place - shift) * inverse) & (modulus - 1)) < numel)
    return place, (count * side).to(tl.int32), right


@triton.jit
def _taken(keys, row, column, inside, shifts, signs, place_signs, columns, blocks, shift, inverse, modulus, one,
           check_bits, numel, size, ROWS: tl.constexpr):  # fmt: skip
    """As `_alone`, with the place's sign in place of whether: counts are 0 where a cell shows none, or one that a row
    before shows, too, which then stands for it.
    """
    place, count, right = _alone(keys, row, column, inside, shifts, columns, blocks, shift, inverse, modulus, one,
                                 check_bits, numel, size)  # fmt: skip
    _cell, sign = cells_of(place, row, right, shifts, signs, place_signs, columns, blocks)
    for other in tl.static_range(ROWS - 1):
        earlier = right & (other < row)
        column, _sign = cells_of(place, other, earlier, shifts, signs, place_signs, columns, blocks)
        its, _count, shown = _alone(keys, other, column, earlier, shifts, columns, blocks, shift, inverse, modulus, one,
                                    check_bits, numel, size)  # fmt: skip
        right = right & ~(shown & (its == place))
    return place, tl.where(right, count, 0), sign


@triton.jit(do_not_specialize=["factor", "shift", "inverse"])
def _peel(table, keys, shifts, signs, place_signs, arrived, state, taken, heads, nexts, signed, places, each, values,
          out, counts, columns, blocks, most, factor, shift, inverse, modulus, one, check_bits, numel, size,
          ROWS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A pass has two phases. The first adds what the last pass put into the cells' lists and finds the cells that show
    one place. The second takes the places out of the keys and lists their values. An entry of a list is the number of
    a cell; `places` has the places of this pass and of the last one.
    """
    cells = ROWS * columns
    first, step = tl.program_id(0) * BLOCK, tl.num_programs(0) * BLOCK
    number = 0
    going = 1
    while going > 0:
        most_now = tl.where(number < most, size, 0)  # after the last pass cells show nothing
        mine, before = places + (number % 2) * cells, places + ((number + 1) % 2) * cells
        for start in range(first, cells, step):
            cell = start + tl.arange(0, BLOCK)
            inside = cell < cells
            row = cell // columns
            head = tl.load(heads + cell, mask=inside, other=0)
            total = _added(tl.load(table + cell, mask=inside, other=0.0), head, row * cells, nexts, signed, before)
            tl.store(table + cell, total, mask=inside)
            tl.store(heads + cell, tl.zeros([BLOCK], tl.int32), mask=inside)
            if number == 0:
                sound = tl.min((tl.abs(total) < float("inf")).to(tl.int32), 0)
                tl.atomic_max(state, 1 - sound, sem="relaxed")
            place, count, sign = _taken(keys, row, cell - row * columns, inside, shifts, signs, place_signs, columns,
                                        blocks, shift, inverse, modulus, one, check_bits, numel, most_now,
                                        ROWS)  # fmt: skip
            tl.store(mine + cell, place, mask=inside)
            tl.store(each + cell, count, mask=inside)
            tl.store(values + cell, total * sign, mask=inside)
            tl.atomic_add(taken + number, tl.sum((count != 0).to(tl.int32), 0), sem="relaxed")
        meet(arrived, 2 * number + 1)
        for start in range(first, cells, step):
            cell = start + tl.arange(0, BLOCK)
            count = tl.load(each + cell, mask=cell < cells, other=0)
            right = count != 0
            place = tl.load(mine + cell, mask=right, other=0)
            value = tl.load(values + cell, mask=right, other=0.0)
            key = (_key(place, columns, one, check_bits) * -count).to(keys.dtype.element_ty)
            for row in tl.static_range(ROWS):
                column, sign = cells_of(place, row, right, shifts, signs, place_signs, columns, blocks)
                _listed(cell, row * cells, row * columns + column, sign * -value, right, heads, nexts, signed)
                tl.atomic_add(keys + row * columns + column, key, mask=right, sem="relaxed")
            place = ((place - shift) * inverse) & (modulus - 1)
            value += tl.load(out + place, mask=right, other=0.0)
            tl.store(out + place, value, mask=right)
            tl.store(counts + place, tl.load(counts + place, mask=right, other=0) + count, mask=right)
            infinite = right & ~(tl.abs(value) < float("inf"))
            tl.atomic_max(state + 2, tl.max(infinite.to(tl.int32), 0), sem="relaxed")
        meet(arrived, 2 * number + 2)
        going = tl.load(taken + number)
        number += 1
    for start in range(first, cells, step):
        cell = start + tl.arange(0, BLOCK)
        left = tl.load(keys + cell, mask=cell < cells, other=0) != 0
        tl.atomic_max(state + 1, tl.max(left.to(tl.int32), 0), sem="relaxed")


@triton.jit
def _average(grad, sums, counts, state, residual, places, found, numel, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < numel
    there = tl.load(counts + at, mask=inside, other=0) != 0
    value = tl.load(sums + at, mask=inside, other=0.0)
    rest = tl.where(tl.load(state + 2) > 0, float("nan"), 0.0)
    tl.store(grad + at, tl.where(there, tl.div_rn(value, tl.zeros_like(value) + size), rest), mask=inside)
    sent = at < tl.load(found)
    tl.store(residual + tl.load(places + at, mask=sent, other=0), tl.zeros([BLOCK], tl.float32), mask=sent)


@triton.jit(do_not_specialize=["shift", "inverse"])
def _flag(counts, arrived, places, state, flags, tallies, alarm, numel, shift, inverse, modulus, each, parts,
          BLOCK: tl.constexpr, TILE: tl.constexpr):  # fmt: skip
    program, step = tl.program_id(0), tl.num_programs(0)
    many = tl.load(state)
    for start in range(program * BLOCK, many, step * BLOCK):
        entry = start + tl.arange(0, BLOCK)
        place = tl.load(places + 1 + entry, mask=entry < many, other=0).to(tl.int64)
        place = ((place - shift) * inverse) & (modulus - 1)
        tl.store(counts + place, tl.full([BLOCK], 1, tl.int32), mask=(entry < many) & (place < numel))
    if program == 0:
        tl.store(alarm + tl.arange(0, 2), tl.zeros([2], tl.float32))
    meet(arrived, 1)
    for part in range(program, parts, step):
        chosen = tl.zeros([TILE], tl.int32)
        for number in range(each):
            at = (tl.zeros([TILE], tl.int64) + part * each + number) * TILE + tl.arange(0, TILE)
            here = (tl.load(counts + at, mask=at < numel, other=0) != 0).to(tl.int32)
            tl.store(flags + at, here.to(tl.uint8), mask=at < numel)
            chosen += here
        tl.store(tallies + part, tl.sum(chosen, 0))
