"""dion against (Orth-)Dion of one worker with the average gradient, by Gram and Schmidt; what is sent, what stays."""

import math

import pytest
import torch
from torch import Tensor

from tests.compressors.updates import LAYERS, SHAPES, gradients, step_of, world_of
from tests.helpers import Log, exchange, lay_out
from wirebench.compressors.lowrank.factors import orthonormalise
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
    results = exchange(world_of("dion"), gradients(0, numel=5), lay_out([(5,)]), log)
    assert len(log) == 1 and results[0].abs().eq(1).all()
