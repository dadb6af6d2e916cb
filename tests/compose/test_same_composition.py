"""Whether ranks hold the same bits: what a checksum tells apart, and what it leaves to others to tell."""

import pytest
import torch

from tests.exchange.lanes import lanes_of
from wirebench.comm.local import LocalHub
from wirebench.config.loader import Config
from wirebench.errors import UserError
from wirebench.exchange.consistency import check_averages, check_parameters, checksum, first_to_differ

VECTOR = torch.tensor([1.0, -2.0, 0.0, 4.0])


def differs(*vectors: torch.Tensor) -> int:
    return first_to_differ(LocalHub(len(vectors)).communicators, vectors)


def test_the_same_bits_do_not_differ():
    assert differs(VECTOR, VECTOR.clone(), VECTOR.clone()) == 0
    assert differs(VECTOR) == 0


@pytest.mark.parametrize(
    "other",
    [VECTOR + 1e-7, VECTOR.flip(0), VECTOR * torch.tensor([1.0, 1.0, -1.0, 1.0]), torch.zeros(4)],
    ids=["rounding", "other places", "sign of zero", "nothing"],
)
def test_any_other_bit_differs(other: torch.Tensor):
    assert differs(VECTOR, VECTOR.clone(), other) == 2
    assert differs(other, VECTOR, VECTOR) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_told_elsewhere(bad: float):
    assert differs(VECTOR, torch.tensor([1.0, bad, 0.0, 4.0]), torch.zeros(4)) == 0


def test_large_values_whose_sum_overflows_are_compared():
    large = torch.full((4,), 3e38)
    assert checksum(large) >= 0
    assert differs(large, large * 0.5) == 1


def test_the_error_names_the_compressor_and_when():
    _, lanes = lanes_of(2)
    check_averages(lanes, [VECTOR, VECTOR], "step 7")
    with pytest.raises(UserError, match=r"^compressor\.name: 'tests\.exchange\.lanes': step 7: the ranks' averages"):
        check_averages(lanes, [VECTOR, -VECTOR], "step 7")


def test_models_are_compared_with_those_who_average_them():
    hub = LocalHub(2).communicators
    check_parameters(hub, [VECTOR, VECTOR], 3, Config())
    with pytest.raises(UserError, match=r"^step 3: the ranks' parameters differ: rank 1 .*none or .* = wfbp"):
        check_parameters(hub, [VECTOR, -VECTOR], 3, Config())
