"""zero_one_adam against its paper's algorithm written with whole momenta and loops; its steps, and what it sends."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.compressors.updates import LAYERS, NUMEL, RANKS, gradients, step_of, world_of
from tests.helpers import Log
from wirebench import compressors
from wirebench.compressors.bits.blocks import Run
from wirebench.compressors.bits.onebit_sum import onebit_bytes, shares_of
from wirebench.compressors.common.intervals import Intervals
from wirebench.gradient.requests import Gather, Route, Sum

BETA1, BETA2, EPS = 0.9, 0.99, 1e-8
STEPS = {"kappa": 2, "freeze_step": 6, "double_every": 4, "longest": 4}
OPTIONS: dict[str, Any] = {"beta1": BETA1, "beta2": BETA2, "eps": EPS, **STEPS}


def edges() -> list[tuple[int, int]]:
    """Where each rank's share begins and ends."""
    each = math.ceil(math.ceil(NUMEL / RANKS) / 32) * 32
    return [(min(rank * each, NUMEL), min((rank + 1) * each, NUMEL)) for rank in range(RANKS)]


def one_bit(values: Tensor, begin: int, end: int) -> Tensor:
    """What arrives of the values of one share: by layer the mean magnitude with each one's sign."""
    sent = torch.zeros_like(values)
    for layer in LAYERS:
        places = range(max(layer.start, begin), min(layer.stop, end))
        if places:
            scale = math.fsum(abs(values[place].item()) for place in places) / len(places)
            for place in places:
                sent[place] = scale if values[place] >= 0 else -scale
    return sent


def exchanged(sums: list[Tensor], errors: list[Tensor], kept: list[Tensor]) -> Tensor:
    """What arrives of all ranks' sums and errors; errors, and what is kept of the sums, are brought up to date."""
    total = torch.zeros(NUMEL, dtype=torch.float64)
    for rank, (begin, end) in enumerate(edges()):
        here = kept[rank].clone()
        for mine, error in zip(sums, errors, strict=True):
            here += one_bit(mine + error, begin, end)
        here[:begin], here[end:] = 0, 0
        sent = one_bit(here, begin, end)
        kept[rank], total = here - sent, total + sent
    for rank, mine in enumerate(sums):
        arrived = [one_bit(mine + errors[rank], *edge) for edge in edges()]
        errors[rank] = mine + errors[rank] - torch.stack(arrived).sum(0)
    return total


def test_all_kinds_of_steps_are_the_papers() -> None:
    """Momenta are whole here, as in the paper; what is sent is what of them goes beyond the part that all share."""
    methods = world_of("zero_one_adam", **OPTIONS)
    momenta, errors, kept = ([torch.zeros(NUMEL, dtype=torch.float64) for _ in range(RANKS)] for _ in range(3))
    known, variance = (torch.zeros(NUMEL, dtype=torch.float64) for _ in range(2))
    dense = {0, 1, 2, 4}
    ends = {3, 5, 6, 7, 8, 9, 11, 13, 17, 21}  # then every fourth: intervals of 1 to step 9, of 2 to 13, of 4
    sums = [torch.zeros(NUMEL, dtype=torch.float64) for _ in range(RANKS)]
    moved, length, updates = torch.zeros(NUMEL, dtype=torch.float64), 0, 0
    for step in range(20):
        grads = gradients(step)
        result = step_of(methods, step, grads).double()
        if step in dense:
            average = torch.stack(grads).double().mean(0)
            variance, updates = BETA2 * variance + (1 - BETA2) * average**2, updates + 1
            known = BETA1 * known + (1 - BETA1) * average
            momenta, update = [known.clone() for _ in grads], known
        else:
            length, known = length + 1, BETA1 * known
            for rank, grad in enumerate(grads):
                momenta[rank] = BETA1 * momenta[rank] + (1 - BETA1) * grad.double()
                sums[rank] += momenta[rank] - known
            moved, update = moved + known, known
        if step in ends:
            total = exchanged(sums, errors, kept)
            update = known + total / RANKS
            known = (moved + total / RANKS) / length
            momenta = [known.clone() for _ in grads]
            sums, moved, length = [torch.zeros_like(each) for each in sums], torch.zeros_like(moved), 0
        scale = (variance / (1 - BETA2**updates)).sqrt() + EPS
        torch.testing.assert_close(result, update / scale / (1 - BETA1 ** (step + 1)), atol=1e-4, rtol=1e-3)
    for method, error, mine, served in zip(methods, errors, sums, kept, strict=True):
        # The last interval is open: its momenta wait with the residual.
        state = method.memory.state_dict()
        torch.testing.assert_close(state["residual"].double(), error + mine, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(state["served"].double(), served, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("policy", [Intervals(2, 6, 4, 4), Intervals(1, 100, 7, 8), Intervals(16, 40, 3, 1)])
def test_steps_are_the_papers(policy: Intervals) -> None:
    """Dense steps k_0 = 0, k_(j+1) = k_j + 2^floor(j / kappa); after double_every steps the intervals double."""
    dense = [0]
    for number in range(200):
        dense.append(dense[-1] + 2 ** (number // policy.kappa))
    dense = [step for step in dense if step < policy.freeze_step]
    usual = next(step for step in range(200) if step not in dense)
    assert compressors.build("zero_one_adam", **policy._asdict()).usual_step == usual
    length, begin = 1, policy.freeze_step
    for step in range(200):
        assert policy.is_dense(step) == (step in dense)
        assert policy.dense_steps(step) == sum(place <= step for place in dense)
        if step < policy.freeze_step:
            assert policy.around(step) == (step, 1)
            continue
        since = step - policy.freeze_step
        if since and since % policy.double_every == 0 and length < policy.longest:
            length, begin = length * 2, step
        elif step == begin + length:
            begin = step
        stage_ends = policy.freeze_step + (since // policy.double_every + 1) * policy.double_every
        last = length == policy.longest
        assert policy.around(step) == (begin, length if last else min(length, stage_ends - begin))


def test_a_share_is_whole_words_and_all_of_them_are_the_bucket() -> None:
    for numel in (1, 31, 33, 1000):
        for size in (1, 2, 3, 7):
            shares = shares_of((Run(numel, 1),), size)
            assert [share.piece.start for share in shares[1:]] == [share.piece.stop for share in shares[:-1]]
            assert shares[-1].piece.stop == numel and all(share.piece.start % 32 in (0, numel % 32) for share in shares)


def test_what_it_hands_over_is_what_it_says() -> None:
    methods, kinds, sizes = world_of("zero_one_adam", **OPTIONS), [], []
    for step in range(12):
        log: Log = []
        step_of(methods, step, gradients(step), log)
        kinds.append([type(requests[0]) for requests in log])
        sizes.append(log)
    bits = [Route, Gather]
    assert kinds == [[Sum]] * 3 + [bits, [Sum], bits, bits, bits, bits, bits, [Sum], bits]
    assert sizes[10][0][0].tensor.numel() == 1  # type: ignore[union-attr]
    assert sizes[10][0][0].values == 0
    usual = compressors.build("zero_one_adam")
    assert usual.wire_bytes(1_000_000, 4) == onebit_bytes(1_000_000, 4)
    # A bit for each element to those who add up, and a rank's share of bits to all.
    assert usual.wire_bytes(1_000_000, 4) == pytest.approx(1_000_000 / 8 * 1.25, rel=0.001)
