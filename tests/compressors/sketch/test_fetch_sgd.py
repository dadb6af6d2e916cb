"""FetchSGD: nothing is kept entry by entry, so it is held to account in the sketch's own space."""

import functools
from typing import Any

import pytest
import torch

from tests import helpers
from tests.compressors.twins import estimates_reference, top_k_reference
from tests.helpers import answer_all, cut, exchange, lay_out, whole
from wirebench.compressors.fetch_sgd import FetchSgd
from wirebench.gradient.context import ExchangeContext

NUMEL, K, ROWS, COLUMNS = 300, 12, 5, 48
whole_numbers = functools.partial(helpers.whole_numbers, numel=NUMEL)
SIZES: dict[str, Any] = {"density": K / NUMEL, "rows": ROWS, "columns": COLUMNS}
HASHES = ("block", "reference")


def state(rank, name):
    return rank.state_dict()[f"shared.{name}.0"]


@pytest.mark.parametrize("clear", ["subtract", "cells"])
@pytest.mark.parametrize("hash", HASHES)
def test_the_twin(hash, clear):
    """The paper's lines, one after the other; halves of whole numbers add up exactly for these few steps."""
    ranks = [FetchSgd(**SIZES, hash=hash, momentum=0.5, clear=clear) for _ in range(2)]
    u, e = torch.zeros(ROWS, COLUMNS), torch.zeros(ROWS, COLUMNS)
    for step in range(4):
        grads = whole_numbers(2, step)
        sketch = ranks[0].sketch_of(whole(grads[0]), ExchangeContext(0, 2))
        cells = list(sketch.hash.cells(torch.arange(NUMEL)))
        u = 0.5 * u + sketch.sketch(grads[0]) + sketch.sketch(grads[1])
        e = e + u
        estimates = estimates_reference(e, cells)
        index = top_k_reference(estimates, K)
        update = torch.zeros(NUMEL)
        update[index] = estimates[index]
        if clear == "subtract":
            e = e - sketch.sketch(update)
        else:
            for row, (cell, _) in enumerate(cells):
                e[row, cell[index]] = 0
                u[row, cell[index]] = 0
        for result in exchange(ranks, grads, step=step):
            assert torch.equal(result, update / 2)
        for rank in ranks:
            assert torch.equal(state(rank, "momentum"), u)
            assert torch.equal(state(rank, "error"), e)


@pytest.mark.parametrize(("clear", "wanted"), [("subtract", [2, 0, 0, 3]), ("cells", [0, 1.5, 0, 3])])
def test_a_model_smaller_than_its_table_is_held_as_it_is(clear, wanted):
    rank = FetchSgd(density=0.5, momentum=0.5, clear=clear)
    first = rank.exchange(whole(torch.tensor([4.0, 1.0, -3.0, 2.0])), ExchangeContext(0, 1))
    assert answer_all([first])[0].tolist() == [4, 0, -3, 0]
    assert state(rank, "error").tolist() == [0, 1, 0, 2]
    unsent = rank.unsent(4)
    assert unsent is not None and unsent.tolist() == [0, 1, 0, 2], "a vector in place of the table"
    second = rank.exchange(whole(torch.zeros(4)), ExchangeContext(0, 1, step=1))
    assert answer_all([second])[0].tolist() == wanted
    assert rank.wire_bytes(4, 2) == 16


def test_another_table_begins_anew():
    rank = FetchSgd(**SIZES)
    exchange([rank], whole_numbers(1, 0))
    rank.columns = 20
    exchange([rank], whole_numbers(1, 1), step=1)
    assert state(rank, "error").shape == (ROWS, 20)


def test_it_says_that_it_wants_the_whole_model_and_keeps_nothing_by_place():
    method = FetchSgd()
    assert method.whole_model
    assert method.owns_momentum
    assert method.held_back(NUMEL) is None


def test_what_waits_can_be_weighed_without_its_places():
    """A row's squared norm has the mean of the vector's, and with 48 columns a deviation of a fifth of it."""
    rank, (grad,) = FetchSgd(**SIZES, momentum=0.0, clear="subtract"), whole_numbers(1, 3)
    assert rank.unsent(NUMEL) is None
    applied = exchange([rank], [grad])[0]
    unsent = rank.unsent(NUMEL)
    assert unsent is not None
    assert unsent.norm().item() == pytest.approx((grad - applied).norm().item(), rel=0.5)


def test_buckets_have_sketches_of_their_own():
    rank, grad = FetchSgd(**SIZES), whole_numbers(1, 0)[0]
    layers = lay_out([(150, 1), (150, 1)])
    for bucket in cut(grad, layers, [range(0, 1), range(1, 2)]):
        answer_all([rank.exchange(bucket, ExchangeContext(0, 1))])
    assert sorted(rank.state_dict()) == [f"shared.{n}.{start}" for n in ("error", "momentum") for start in (0, 150)]
