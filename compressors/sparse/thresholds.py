"""Which entries to send: the exact largest, or those above a threshold that is estimated more cheaply.

  exact     top_k (selection.py)
  sampled   the k-th largest of a strided sample (Lin et al., "Deep Gradient Compression", ICLR 2018, section 3)
  gaussian  the quantile of a normal distribution with the vector's mean and deviation (Shi et al., "Understanding
            Top-k Sparsification in Distributed Deep Learning", arXiv 1911.08772, GaussianK)
  sidco     the quantile of an exponential distribution, fitted again to what is left, stage by stage (Abdelmoniem et
            al., "An Efficient Statistical-based Gradient Compression Technique", MLSys 2021); fitted to a strided
            sample here, since a fit to all entries costs several readings of the vector and is no better

Estimates miss k. If an estimate finds too many entries, the k largest of them are taken (the original codes cut by
place, which favours the first layers, or raise the threshold and look again). If it finds too few, it is lowered as in
its paper or code. If that does not help, as with one huge entry, the choice is exact. So between FEWEST k and k entries
are chosen, unless there are fewer non-zeros, and all of them are larger than all others. Infinity is larger than every
number, and NaN larger than infinity.
"""

import math
import struct
from collections.abc import Callable
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.sparse.selection import SIGN_OFF, bits_of, places_from, top_k
from wirebench.gradient.context import ExchangeContext

Rule = Literal["exact", "sampled", "gaussian", "sidco"]
EXACT_BY_KERNELS = ("exact", "sampled")
"""Rules that kernels serve alike, with as many places in every step."""

SMALL = 4096
"""Elements up to which the exact choice is as fast as any estimate."""

FEWEST = 0.5
"""An estimate that finds fewer than this share of k is replaced by the exact choice."""

ROW_BITS = 6
"""Rows of 64 elements."""
CROWDED = 0.25
"""If more than this share of the rows has a peak above the threshold, all entries are compared instead."""
IN_ROWS = frozenset({"cuda"})
"""Devices on which a vector is searched by rows at all."""

# DGC's sample: at least this share, with an odd stride that meets all channels and kernel positions alike.
SAMPLE_SHARE, STRIDE_STEP = 0.01, 32
# DGC: this many expected hits in the sample; the threshold is lowered while it finds too few.
SAMPLE_HITS, FEW, LOWER, TRIES = 2, 0.8, 0.8, 10
# GaussianK's code.
GAUSSIAN_FEW, GAUSSIAN_LOWER, GAUSSIAN_TRIES = 2 / 3, 0.5, 3
# SIDCo's share of a stage. At least SIDCO_HITS hits determine the last stage's mean to 5 %.
SIDCO_STAGE, SIDCO_HITS = 0.25, 512

LARGEST = torch.finfo(torch.float32).max


def choose(x: Tensor, k: int, rule: Rule, world: ExchangeContext, key: int = 0) -> Tensor:
    """At most `k` places of the contiguous fp32 vector `x` by magnitude, int64, ascending.

    `key` names the bucket, for rules that draw. With kernels `sampled` is exact, which costs them less, and both give
    `k` places, zeros where others are too few, so that the host need not wait. The other estimates wait for the device.
    """
    if kernels.usable(x) and rule in EXACT_BY_KERNELS:
        from wirebench.compressors.kernels.together import largest

        return largest(x, k, or_zeros=True)[0] if k < x.numel() else torch.arange(x.numel(), device=x.device)
    if rule == "exact" or x.numel() <= SMALL or k >= x.numel():
        return top_k(x, k)
    if kernels.usable(x):
        return _choose_at_once(x, k, rule, world, key)
    index = _ESTIMATES[rule](x, k, world, key)
    if index.numel() < FEWEST * k:
        return top_k(x, k)
    return index if index.numel() <= k else index[top_k(x.index_select(0, index), k)]


def _choose_at_once(x: Tensor, k: int, rule: Rule, world: ExchangeContext, key: int) -> Tensor:
    """The estimates of `choose` by kernels, as many of them for any number of tries; the host waits twice."""
    from wirebench.compressors.kernels import selection, together
    from wirebench.compressors.kernels.region_messages import LIMITS, Above

    counts, tries, factor, fewest = together.zeros(x.device, 1), 1, 1.0, 0.0
    if rule == "gaussian":
        total, squares = selection.sums(x).tolist()
        threshold = _normal_quantile(total / x.numel(), math.sqrt(squares), k, x.numel())
        tries, factor, fewest = 1 + GAUSSIAN_TRIES, GAUSSIAN_LOWER, GAUSSIAN_FEW * k
    else:
        sample, stages = _strided(x.numel(), k / x.numel(), SIDCO_HITS, world, key), _stages(k / x.numel())
        (threshold,) = together.exponential(x, sample, stages, counts[-1:]).tolist()
    limits = [limit_of(threshold * factor**number) for number in range(LIMITS if tries > 1 else 1)]
    found = Above(x, [0, x.numel()], limits)
    enough = [number for number, many in enumerate(found.counts.sum(1)[:tries]) if many >= fewest]
    number = 0 if not threshold <= LARGEST else enough[0] if enough else tries - 1
    index, values, _ = found.messages(number, torch.float32)
    if index.numel() < FEWEST * k:
        return top_k(x, k)
    return index if index.numel() <= k else index.index_select(0, together.largest(values, k, counts=counts)[0])


def above(x: Tensor, threshold: float, share: float = 0.0) -> Tensor:
    """Places of the contiguous fp32 vector `x` whose magnitude is larger than `threshold`, int64, ascending.

    NaN and infinity are larger than any threshold, infinity and NaN included. `share` as in Peaks.
    """
    return Peaks(x, share).above(threshold)


def floor_of(values: Tensor, k: int) -> float:
    """The largest threshold that the `k` largest of `values` by magnitude lie above; 0 for fewer than `k` non-zeros."""
    return largest_and_floor(values, k)[1]


def largest_and_floor(values: Tensor, k: int) -> tuple[Tensor, float]:
    """Places of the `k` largest of `values`, as `top_k` gives them, and the result of `floor_of`."""
    if kernels.usable(values) and k < values.numel():
        from wirebench.compressors.kernels.together import largest

        index, found = largest(values, k)
        count, least = found.tolist()
        index = index[:count]
    else:
        index = top_k(values, k)
        least = int((values[index].view(torch.int32) & SIGN_OFF).min()) if index.numel() == k else 0
    if index.numel() < k:
        return index, 0.0
    bits = min(least - 1, limit_of(LARGEST))
    return index, struct.unpack("<f", struct.pack("<i", bits))[0]


class Peaks:
    """A vector whose entries above one threshold or another are found without reading all of it again.

    It is cut into rows, whose largest magnitudes are noted: two readings. Only rows with a peak above the threshold are
    searched. On a CPU all entries are compared for every threshold instead: on one thread, for 14.7M elements, that
    takes 1.2 copies of the vector where 0.1 % are above and 1.4 for 1 %, while the peaks alone take 1.

    share  expected share of entries above: where that concerns too many rows, all entries are compared too
    """

    def __init__(self, x: Tensor, share: float = 0.0) -> None:
        assert x.dim() == 1 and x.dtype == torch.float32 and x.is_contiguous(), (
            "thresholds need a contiguous fp32 vector"
        )
        self.x = x
        if kernels.usable(x):
            return
        width = 1 << ROW_BITS
        self.count = x.numel() // width if x.device.type in IN_ROWS and share * width <= CROWDED else 0
        self.grid = x[: self.count * width].view(self.count, width)
        self.peaks = torch.maximum(self.grid.amax(1), -self.grid.amin(1))  # both hand NaN on

    def above(self, threshold: float) -> Tensor:
        """Places whose magnitude is larger than `threshold`, int64, ascending, as from the function `above`."""
        limit = limit_of(threshold)
        if kernels.usable(self.x):
            from wirebench.compressors.kernels import selection

            return selection.above(self.x, limit)
        rows = _places(self.peaks, limit)
        if not self.count or rows.numel() > CROWDED * self.count:
            return _compare_all(self.x, limit)
        # The elements after the last whole row are one more row, a short one.
        near = torch.cat([self.grid.index_select(0, rows).view(-1), self.x[self.grid.numel() :]])
        rows = torch.cat([rows, rows.new_tensor([self.count])])
        hits = _places(near, limit)
        return (rows.index_select(0, hits >> ROW_BITS) << ROW_BITS).add_(hits & ((1 << ROW_BITS) - 1))


def _compare_all(x: Tensor, limit: int) -> Tensor:
    """The same places as `_places`; on a CPU in half of the time or less."""
    if x.is_cuda:
        return _places(x, limit)
    places = places_from(bits_of(x), limit + 1)
    return torch.from_numpy(places) if places.size else torch.empty(0, dtype=torch.int64)


def limit_of(threshold: float) -> int:
    """The threshold's bits: as integers, magnitudes order as the numbers do, and NaN above infinity."""
    assert not threshold < 0, "a threshold is a magnitude"
    finite = threshold if threshold <= LARGEST else LARGEST  # NaN is not
    bits: int = struct.unpack("<i", struct.pack("<f", finite))[0]
    return bits


def _places(x: Tensor, limit: int) -> Tensor:
    return torch.nonzero((x.view(torch.int32) & SIGN_OFF) > limit).squeeze(1)


def _lowered(peaks: Peaks, threshold: float, fewest: float, factor: float, tries: int) -> Tensor:
    """Places above the threshold, which is lowered by `factor` at most `tries` times until there are `fewest`."""
    index = peaks.above(threshold)
    for _ in range(tries):
        if index.numel() >= fewest or not threshold <= LARGEST:
            break
        threshold *= factor
        index = peaks.above(threshold)
    return index


def _strided(numel: int, share: float, hits: int, world: ExchangeContext, key: int) -> slice:
    """Every n-th place from a random one on; n is such that about `hits` of the `share` chosen are expected there."""
    longest = int(numel / max(SAMPLE_SHARE * numel, hits / share))
    stride = longest // STRIDE_STEP * STRIDE_STEP + 1 if longest >= STRIDE_STEP else max(longest - 1, 0) | 1
    start = int(torch.randint(stride, (1,), generator=world.shared_rng("sample", key)))
    return slice(start, None, stride)


def _sample(x: Tensor, share: float, hits: int, world: ExchangeContext, key: int) -> Tensor:
    return x[_strided(x.numel(), share, hits, world, key)].contiguous()


def _sampled(x: Tensor, k: int, world: ExchangeContext, key: int) -> Tensor:
    share = k / x.numel()
    sample = _sample(x, share, SAMPLE_HITS, world, key)
    threshold = floor_of(sample, max(math.ceil(sample.numel() * share), 1))
    return _lowered(Peaks(x, share), threshold, FEW * k, LOWER, TRIES)


def _gaussian(x: Tensor, k: int, world: ExchangeContext, key: int) -> Tensor:
    mean, root = (x.sum() / x.numel()).item(), torch.linalg.vector_norm(x).item()
    threshold = _normal_quantile(mean, root, k, x.numel())
    return _lowered(Peaks(x, k / x.numel()), threshold, GAUSSIAN_FEW * k, GAUSSIAN_LOWER, GAUSSIAN_TRIES)


def _normal_quantile(mean: float, root: float, k: int, numel: int) -> float:
    """What `k` of `numel` normal numbers with this mean and this root of their squares' sum are above."""
    deviation = math.sqrt(max(root**2 / numel - mean**2, 0.0)) if root <= LARGEST else math.inf
    return abs(mean) + deviation * _quantile(k, numel)


@cache
def _quantile(k: int, numel: int) -> float:
    return math.sqrt(2) * torch.special.erfinv(torch.tensor(1 - k / numel, dtype=torch.float64)).item()


def _sidco(x: Tensor, k: int, world: ExchangeContext, key: int) -> Tensor:
    """In an exponential distribution of magnitudes above t, the share q lies above t - mean(|x| - t) ln q."""
    share = k / x.numel()
    tail, threshold = _sample(x, share, SIDCO_HITS, world, key).abs(), 0.0
    log, stages, last = _stages(share)
    for stage in range(stages):
        tail = tail[tail > threshold] if stage else tail
        if not tail.numel():
            break
        threshold -= (tail.mean().item() - threshold) * (last if stage == stages - 1 else log)
    return above(x, threshold, k / x.numel())


def _stages(share: float) -> tuple[float, int, float]:
    """The logarithm of a stage's share; how many stages give `share`; the logarithm of the last one's share."""
    stages = 1
    while share < SIDCO_STAGE:
        share, stages = share / SIDCO_STAGE, stages + 1
    return math.log(SIDCO_STAGE), stages, math.log(share)


_ESTIMATES: dict[str, Callable[[Tensor, int, ExchangeContext, int], Tensor]] = {
    "sampled": _sampled,
    "gaussian": _gaussian,
    "sidco": _sidco,
}
