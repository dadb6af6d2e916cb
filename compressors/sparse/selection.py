"""Exact top-k by magnitude, for the time of two or three copies of the vector.

On a CPU a sample of the vector gives a floor that slightly more than k elements pass. One scan in parts that stay in
the cache finds these, and the choice among them is exact. The count shows whether the sample misled.

If it did, the vector is cut into rows. A peak is a row's largest magnitude; ties go to the earlier row or
element. **The k largest elements lie in the k rows with the largest peaks:** were a chosen element in another row, each
of these k rows would hold an element that precedes it. Two readings of the vector give the peaks, and the k best rows
are copied out. The smallest of their peaks is a floor below which nothing is chosen: nothing is guessed.

On a GPU kernels find the k-th magnitude by its bits (kernels/together.py).

wirebench bench compressors times it beside `torch.topk(x.abs(), k)`.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from wirebench.compressors import kernels

# Below this many elements one selection over all of them is as fast as two over parts.
DIRECT_NUMEL = 1 << 14
# Wide rows make few peaks, narrow rows few candidates. Rows shorter than 32 cost more to
# reduce on a CPU than they save.
ROW_WIDTHS = (64, 32)
# Every 97th element: a prime stride meets all channels and kernel positions of a layer alike.
SAMPLE_STRIDE = 97
# Elements of a part that a scan reads, compares and searches while it is in the cache.
PART = 1 << 18
# A floor that more than this many times k elements pass is of no use: the vector has few different values.
TOO_MANY = 4
SIGN_OFF = 0x7FFFFFFF
NAN_KEY = 0x7F800001


def top_k(x: Tensor, k: int) -> Tensor:
    """Places of the `k` elements of `x` that are largest by magnitude, int64, ascending.

    `x` is a contiguous float32 vector. Equal magnitudes go to the smaller place. NaN is larger than infinity, so that
    it is always chosen and never stays hidden in a residual. Zeros are never chosen: with fewer than `k` non-zeros the
    answer is shorter. Exact and deterministic, on CPU and CUDA.
    """
    assert x.dim() == 1 and x.dtype == torch.float32 and x.is_contiguous(), "top_k takes a contiguous fp32 vector"
    assert k >= 1, f"k is at least 1, got {k}"
    if k >= x.numel():
        return torch.nonzero(x).squeeze(1)
    if kernels.usable(x):
        from wirebench.compressors.kernels.together import largest

        places, found = largest(x, k)
        return places[: int(found[0])]
    if x.device.type == "cpu" and x.numel() >= 16 * DIRECT_NUMEL:
        picked = _pick_by_sample(x, k)
        if picked is not None:
            return picked
    # Half of the vector at most is copied out.
    width = next((w for w in ROW_WIDTHS if 2 * k * w <= x.numel()), 0)
    if width == 0 or x.numel() < DIRECT_NUMEL:
        return _pick(_keys(x), k)
    return _pick_by_rows(x, k, width)


def bits_of(x: Tensor) -> "np.ndarray[Any, np.dtype[np.int32]]":
    """The bits of a contiguous fp32 vector on a CPU, int32, not copied."""
    return x.detach().numpy().view(np.int32)


def places_from(bits: "np.ndarray[Any, np.dtype[np.int32]]", least: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Ascending places of the elements whose bits without the sign are at least `least`; NaN is among them."""
    keys = np.empty(min(PART, bits.size), np.int32)
    places = []
    for start in range(0, bits.size, PART):
        part = bits[start : start + PART]
        np.bitwise_and(part, SIGN_OFF, out=keys[: part.size])
        places.append(np.flatnonzero(keys[: part.size] >= least) + start)
    return np.concatenate(places) if places else np.empty(0, np.int64)


def _pick_by_sample(x: Tensor, k: int) -> Tensor | None:
    """The answer of `top_k`; None where the sample misled, or too many elements are alike."""
    bits = bits_of(x)
    sample = bits[::SAMPLE_STRIDE] & SIGN_OFF
    rank = int(k / SAMPLE_STRIDE + _slack(k)) + 1
    floor = 1
    if rank <= sample.size:
        floor = max(int(np.partition(sample, sample.size - rank)[sample.size - rank]), 1)
    if np.count_nonzero(sample >= floor) > TOO_MANY * rank:
        return None
    places = places_from(bits, floor)
    if places.size < k:
        return None
    keys = np.minimum(bits[places] & SIGN_OFF, NAN_KEY)
    least = np.partition(keys, keys.size - k)[keys.size - k]
    chosen = keys > least
    ties = np.flatnonzero(keys == least)
    chosen[ties[: k - np.count_nonzero(chosen)]] = True
    return torch.from_numpy(places[chosen])


def _slack(k: int) -> float:
    """Four standard deviations of the number of the k largest that a sample holds."""
    return 4 * (k / SAMPLE_STRIDE) ** 0.5 + 4


def _pick_by_rows(x: Tensor, k: int, width: int) -> Tensor:
    count = x.numel() // width
    grid, tail = x[: count * width].view(count, width), x[count * width :]
    peaks = _keys(torch.maximum(grid.amax(1), -grid.amin(1)))  # both hand NaN on
    rows = _pick(peaks, k)
    candidates = _keys(torch.cat([grid.index_select(0, rows).view(-1), tail]))
    floor = peaks[rows].min() if rows.numel() == k else 1
    near = torch.nonzero(candidates >= floor).squeeze(1)
    chosen = near[_pick(candidates[near], k)]
    rows = torch.cat([rows, rows.new_tensor([count])])  # the tail is one more row, a short one
    return rows[chosen // width] * width + chosen % width


def _keys(x: Tensor) -> Tensor:
    """Integers that order as the magnitudes of `x` do; all NaNs get the largest one."""
    return (x.view(torch.int32) & SIGN_OFF).clamp_(max=NAN_KEY)


def _pick(keys: Tensor, k: int) -> Tensor:
    """Places of the `k` largest of `keys` that are not 0, ascending; equal ones from the front."""
    if keys.numel() == 0:
        return torch.empty(0, dtype=torch.int64, device=keys.device)
    least = _kth_largest(keys, min(k, keys.numel()))
    chosen = keys > least
    ties = torch.nonzero((keys == least) & (keys > 0)).squeeze(1)
    chosen[ties[: k - int(chosen.count_nonzero())]] = True
    return torch.nonzero(chosen).squeeze(1)


def _kth_largest(keys: Tensor, k: int) -> Tensor:
    """The `k`-th largest of `keys`.

    Where keys are many a sample brackets it, so that only those inside the bracket are selected from; where the sample
    misled, which counting shows, all are.
    """
    sample = keys[::SAMPLE_STRIDE].sort(descending=True).values if keys.numel() >= 16 * DIRECT_NUMEL else keys[:0]
    if sample.numel():
        rank, slack = k / SAMPLE_STRIDE, _slack(k)
        high = sample[max(int(rank - slack), 0)]
        low = sample[min(int(rank + slack), sample.numel() - 1)]
        above = int((keys > high).count_nonzero())
        if above < k <= int((keys >= low).count_nonzero()):
            if bool(high == low):  # as when most are 0; selecting among equals would be slow
                return high
            inside = keys[(keys <= high) & (keys >= low)]
            return torch.topk(inside, k - above, sorted=False).values.min()
    return torch.topk(keys, k, sorted=False).values.min()
