"""dion against (Orth-)Dion of one worker with the average gradient, by Gram and Schmidt; what is sent, what stays."""

import math

import pytest
import torch
from torch import Tensor

from tests.compressors.updates import LAYERS, RANKS, SHAPES, gradients, step_of, world_of
from tests.helpers import Log, answer_all, lay_out
from wirebench import compressors
from wirebench.compressors.lowrank.factors import orthonormalise
from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket
from wirebench.utils.rng import generator

MU, BETA1, BETA2 = 0.9, 0.8, 0.7


def orthonormal(matrix: Tensor) -> Tensor:
    """Gram and Schmidt, column by column."""
    columns: list[Tensor] = []
    for column in matrix.T:
        for other in columns:
            column = column - (other @ column) * other
        columns.append(column / column.norm())
    return torch.stack(columns, 1)


def rank_of(shape: tuple[int, ...], fraction: float) -> int:
    return math.ceil(fraction * min(shape[0], math.prod(shape[1:])))


@pytest.mark.parametrize("orthonormal_right", [False, True])
@pytest.mark.parametrize("fraction", [0.25, 0.5, 1.0])
def test_four_steps_are_those_of_one_worker_with_the_average(fraction: float, orthonormal_right: bool) -> None:
    more = {"orthonormal": True} if orthonormal_right else {}
    methods = world_of("dion", rank_fraction=fraction, mu=MU, beta1=BETA1, beta2=BETA2, **more)
    momenta = {layer.name: torch.zeros(layer.numel, dtype=torch.float64) for layer in LAYERS}
    right: dict[str, Tensor] = {}
    for step in range(4):
        grads = gradients(step)
        result = step_of(methods, step, grads).double()
        average = torch.stack(grads).double().mean(0)
        for layer, shape in zip(LAYERS, SHAPES, strict=True):
            mine, momentum = average[layer.start : layer.stop], momenta[layer.name]
            if len(shape) == 1:
                wanted = (BETA1 * momentum + (1 - BETA1) * mine).sign()
                momentum.mul_(BETA2).add_(mine, alpha=1 - BETA2)
            else:
                matrix = momentum.add_(mine).view(shape[0], -1)
                if layer.name not in right:
                    draw = torch.randn(
                        (rank_of(shape, fraction), matrix.shape[1]),
                        generator=generator("low rank", layer.start, "right", 0),
                    )
                    right[layer.name] = draw.double().T
                p = orthonormal(matrix @ right[layer.name])
                r = matrix.T @ p
                matrix -= (1 - MU) * p @ r.T
                right[layer.name] = orthonormal(r) if orthonormal_right else r / r.norm(dim=0)
                wanted = (math.sqrt(matrix.shape[0] / matrix.shape[1]) * p @ right[layer.name].T).flatten()
            torch.testing.assert_close(result[layer.start : layer.stop], wanted, atol=2e-4, rtol=1e-4)
    held = torch.stack([method.memory.state_dict()["residual"] for method in methods]).double().mean(0)
    for layer, shape in zip(LAYERS, SHAPES, strict=True):
        if len(shape) > 1:
            torch.testing.assert_close(held[layer.start : layer.stop], momenta[layer.name], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("rank", [3, 6])
def test_an_update_of_orth_dion_is_an_isometry_and_what_is_zero_stays_so(rank: int) -> None:
    grads = gradients(0)
    for grad in grads:
        grad[48:] = 0.0
    update = step_of(world_of("dion", rank_fraction=rank / 6, orthonormal=True), 0, grads)
    values = torch.linalg.svdvals(update[:48].view(6, 8) / math.sqrt(6 / 8))
    torch.testing.assert_close(values, torch.tensor([1.0] * rank + [0.0] * (6 - rank)), atol=1e-5, rtol=0)
    assert update[48:].eq(0).all()


def test_rows_without_anything_of_their_own_are_zero_and_take_nothing_from_others() -> None:
    rows = torch.tensor([[[0.0, 0, 0, 0], [2.0, 0, 0, 0], [1.0, -4.0, 0, 0], [-3.0, 2.0, 0, 0]]])
    orthonormalise(rows)
    wanted = torch.tensor([[[0.0, 0, 0, 0], [1.0, 0, 0, 0], [0.0, -1.0, 0, 0], [0.0, 0, 0, 0]]])
    torch.testing.assert_close(rows, wanted)
    rows = torch.randn(2, 4, 192, generator=generator("rows"))
    rows[:, 2] = 2 * rows[:, 0] + rows[:, 1]
    orthonormalise(rows)
    wanted = torch.diag(torch.tensor([1.0, 1.0, 0.0, 1.0])).expand(2, 4, 4)
    torch.testing.assert_close(rows @ rows.mT, wanted, atol=1e-5, rtol=0)


def test_vectors_alone_take_one_sum() -> None:

    log: Log = []
    grads = gradients(0, numel=5)
    buckets = [Bucket(0, grad, torch.zeros(5), lay_out([(5,)])) for grad in grads]
    methods = world_of("dion")
    worlds = [ExchangeContext(rank, RANKS) for rank in range(RANKS)]
    results = answer_all([m.exchange(b, w) for m, b, w in zip(methods, buckets, worlds, strict=True)], log)
    assert len(log) == 1 and results[0].abs().eq(1).all()


def test_a_restored_factor_of_another_rank_is_refused() -> None:
    [method] = world_of("dion", 1)
    step_of([method], 0, gradients(0, 1))
    other = compressors.build("dion", rank_fraction=0.9)
    other.load_state_dict(method.state_dict())
    with pytest.raises(UserError, match=r"saved factor layer\d\.right is .* compressor\.rank_fraction"):
        step_of([other], 1, gradients(1, 1))
