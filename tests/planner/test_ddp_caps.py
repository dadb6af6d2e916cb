"""The planner's merge as DDP's bucket caps: PyTorch's own function makes the same buckets of them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from wirebench.planner.ddp_caps import better_merge, caps_of, caps_words

LAYERS = [10, 64 * 10, 64, 64 * 64 * 9, 1, 3, 2_359_296, 7, 512, 1]
"""Elements, in the order in which gradients come."""


def composition(cut: list[int], compressor: str = "none", scheduler: str = "optimal") -> Any:
    """A candidate whose messages have so many of LAYERS each."""
    begins = [sum(cut[:place]) for place in range(len(cut))]
    elements = tuple(sum(LAYERS[begin : begin + count]) for begin, count in zip(begins, cut, strict=True))
    return SimpleNamespace(compressor=compressor, scheduler=scheduler, found=SimpleNamespace(elements=elements))


@pytest.mark.parametrize("cut", [[1] * 10, [3, 1, 2, 4], [10], [4, 3, 3], [1, 9], [9, 1]])
def test_ddp_makes_these_messages(cut: list[int]) -> None:
    caps = caps_of(composition(cut))
    limits = [int(cap * 2**20) for cap in caps]  # as DistributedDataParallel does
    tensors = [torch.empty(numel) for numel in LAYERS]
    buckets, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [False] * len(tensors))
    assert sorted(map(len, buckets)) == sorted(cut)
    assert sorted(place for bucket in buckets for place in bucket) == list(range(len(LAYERS)))
    assert all(list(bucket) == list(range(bucket[0], bucket[-1] + 1)) for bucket in buckets)


def test_what_ddp_does_not_do_has_no_caps() -> None:
    for compressor, scheduler in (("topk", "optimal"), ("none", "dear"), ("none", "outer")):
        assert caps_of(composition([10], compressor, scheduler)) == []


def test_few_buckets_are_printed_and_many_are_not() -> None:
    assert "bucket_cap_mb_list=[1.5, 0.25] brings 1.20x (torch 2.15)" in caps_words([1.5, 0.25], 1.2)
    many = caps_words([0.5] * 40, 1.2)
    assert "of 40 sizes, which --json has," in many and "bucket_cap_mb=0.5 makes" in many


def test_a_merge_is_named_if_it_is_faster_than_ddps_own() -> None:
    plain, merged, other = (composition([4, 6], scheduler=each) for each in ("fused", "optimal", "mg_wfbp"))
    for each, seconds, collective in ((plain, 1.0, "ring"), (merged, 0.9, "ring"), (other, 0.5, "tree")):
        each.expected_seconds, each.collective, each.between = seconds, collective, (seconds, seconds)
    assert better_merge([plain, other], plain) == []
    [line] = better_merge([plain, merged, other], plain)
    assert "1.11x" in line
