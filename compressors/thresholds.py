"""Which entries to send: the exact largest, or those above a threshold that is estimated more cheaply.

  exact     top_k (selection.py)
  sampled   the k-th largest of a strided sample (Lin et al., "Deep Gradient Compression", ICLR 2018, section 3)
  gaussian  the quantile of a normal distribution with the vector's deviation (Shi et al., "Understanding Top-k
            Sparsification in Distributed Deep Learning", arXiv 1911.08772, GaussianK)
  sidco     the quantile of an exponential distribution, fitted again to what is left, stage by stage (Abdelmoniem et
            al., "An Efficient Statistical-based Gradient Compression Technique", MLSys 2021)

Estimates miss k. Too many are thinned to the k largest (the original codes cut by place, which favours the first
layers); far too few lower the threshold. NaN and infinity are always chosen.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from compressors.selection import SIGN_OFF, top_k
from wirebench.world import World

Rule = Literal["exact", "sampled", "gaussian", "sidco"]

SMALL = 4096
"""Up to here the exact choice is as fast as any estimate."""

# DGC's: at least this share and that many expected hits are sampled, with an odd stride that meets all channels.
SAMPLE_SHARE, SAMPLE_HITS, STRIDE_STEP = 0.01, 2, 32
FEW, LOWER, TRIES = 0.8, 0.8, 10
# GaussianK's corrections.
GAUSSIAN_FEW, GAUSSIAN_MANY, GAUSSIAN_LOWER, GAUSSIAN_HIGHER, GAUSSIAN_TRIES = 2 / 3, 4 / 3, 0.5, 1.5, 3
SIDCO_STAGE = 0.25


def choose(x: Tensor, k: int, rule: Rule, world: World, key: int = 0) -> Tensor:
    """At most `k` places of the contiguous fp32 vector `x` by magnitude, int64, ascending.

    `key` names the bucket, for rules that draw. The estimates wait for the device once or more.
    """
    if rule == "exact" or x.numel() <= SMALL or k >= x.numel():
        return top_k(x, k)
    index = _ESTIMATES[rule](x, k, world, key)
    if index.numel() <= k:
        # Nothing above an estimate that is no number, or that lies above the largest.
        return index if index.numel() else top_k(x, k)
    return index[top_k(x[index], k)]


def above(x: Tensor, threshold: float) -> Tensor:
    """Places of `x` whose magnitude is larger than `threshold`, and of NaN; int64, ascending."""
    return torch.nonzero(_mask(x, threshold)).squeeze(1)


def _mask(x: Tensor, threshold: float) -> Tensor:
    # As integers, magnitudes order as the numbers do, and NaN above infinity.
    limit = torch.tensor(threshold, dtype=torch.float32).view(torch.int32).item()
    return (x.view(torch.int32) & SIGN_OFF) > limit


def _sampled(x: Tensor, k: int, world: World, key: int) -> Tensor:
    density = k / x.numel()
    wanted = max(SAMPLE_SHARE * x.numel(), SAMPLE_HITS / density)
    stride = max(int(x.numel() / wanted) // STRIDE_STEP * STRIDE_STEP + 1, 1)
    start = int(torch.randint(stride, (1,), generator=world.shared_rng("sample", key)))
    sample = x[start::stride].abs()
    threshold = torch.topk(sample, max(math.ceil(sample.numel() * density), 1), sorted=False).values.min().item()
    # Not above it, but from it on: a sample may be constant.
    threshold = math.nextafter(threshold, 0.0) if math.isfinite(threshold) else threshold
    index = above(x, threshold)
    for _ in range(TRIES):
        if index.numel() >= FEW * k or not math.isfinite(threshold):
            break
        threshold *= LOWER
        index = above(x, threshold)
    return index


def _gaussian(x: Tensor, k: int, world: World, key: int) -> Tensor:
    deviation, mean = torch.std_mean(x)
    quantile = math.sqrt(2) * torch.special.erfinv(torch.tensor(1 - k / x.numel(), dtype=torch.float64)).item()
    threshold = abs(mean.item()) + deviation.item() * quantile
    index = above(x, threshold) if math.isfinite(threshold) else x.new_empty(0, dtype=torch.int64)
    for _ in range(GAUSSIAN_TRIES):
        if not math.isfinite(threshold) or GAUSSIAN_FEW * k <= index.numel() <= GAUSSIAN_MANY * k:
            break
        threshold *= GAUSSIAN_LOWER if index.numel() < k else GAUSSIAN_HIGHER
        index = above(x, threshold)
    return index


def _sidco(x: Tensor, k: int, world: World, key: int) -> Tensor:
    """Of an exponential tail above t, the share q lies above t - mean(|x| - t) ln q."""
    survivors, threshold, share = x.abs(), 0.0, k / x.numel()
    while survivors.numel():
        stage = SIDCO_STAGE if share < SIDCO_STAGE else share
        threshold -= (survivors.mean().item() - threshold) * math.log(stage)
        if stage == share or not math.isfinite(threshold):
            break
        survivors, share = survivors[survivors > threshold], share / stage
    return above(x, threshold) if math.isfinite(threshold) else x.new_empty(0, dtype=torch.int64)


_ESTIMATES: dict[str, Callable[[Tensor, int, World, int], Tensor]] = {
    "sampled": _sampled,
    "gaussian": _gaussian,
    "sidco": _sidco,
}
