import pytest
import torch
from torch import Tensor

from tests.compressors.lowrank.test_powersgd import CUTS, LAYERS, MATRICES, NUMEL, cornered, draws, one_step, summed
from tests.compressors.test_contract import Ranks, same_bits
from tests.helpers import Log, lay_out
from wirebench.compressors.acp_sgd import ACPSGD


class Twin:
    """The authors' algorithm, layer by layer, fp64: each rank's residual lacks its own P Q^T, before the sum."""

    def __init__(self, size: int, starts: dict[str, Tensor]) -> None:
        self.factors = {key: start.double().T.clone() for key, start in starts.items()}
        self.residuals = [torch.zeros(NUMEL, dtype=torch.float64) for _ in range(size)]

    def step(self, grads: list[Tensor], number: int) -> Tensor:
        result = torch.stack(grads).double().mean(0)
        mine, other = ("left", "right") if number % 2 == 0 else ("right", "left")
        for layer in MATRICES:
            piece, sent = slice(layer.start, layer.stop), []
            basis = torch.linalg.qr(self.factors[f"{layer.name}.{other}"]).Q
            for residual, grad in zip(self.residuals, grads, strict=True):
                residual[piece] += grad[piece]
                matrix = residual[piece].view(layer.rows, -1)
                matrix = matrix if mine == "left" else matrix.T
                sent.append(matrix @ basis)
                matrix -= sent[-1] @ basis.T
            mean = self.factors[f"{layer.name}.{mine}"] = torch.stack(sent).mean(0)
            average = mean @ basis.T
            result[piece] = (average if mine == "left" else average.T).reshape(-1)
        return result


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("rank", [1, 2])
def test_equals_the_algorithm_of_the_paper(size, rank):
    rng = torch.Generator().manual_seed(size)
    sizes = {"left": lambda layer: layer.rows, "right": lambda layer: layer.numel // layer.rows}
    starts = {f"{m.name}.{s}": torch.randn(rank, of(m), generator=rng) for m in MATRICES for s, of in sizes.items()}
    ranks = Ranks(("acp_sgd", {"rank": rank, "min_compression_rate": 2.0}), size, layers=LAYERS)
    twin = Twin(size, starts)
    for method in ranks.ranks:
        method.load_state_dict({f"shared.{name}": start for name, start in starts.items()})
    for step in range(7):
        grads = draws(size, step)
        result = same_bits(ranks.step(grads, CUTS[step % len(CUTS)]))
        torch.testing.assert_close(result.double(), twin.step(grads, step), rtol=1e-4, atol=2e-5)
        for method, residual in zip(ranks.ranks, twin.residuals, strict=True):
            torch.testing.assert_close(method.state_dict()["residual"].double(), residual, rtol=1e-4, atol=2e-5)


def test_p_and_q_take_turns_in_one_sum():
    log: Log = []
    method = ACPSGD(rank=2)
    for step in (0, 1, 2, 3):
        one_step(method, torch.ones(NUMEL), step, log=log)
    dense = 5 + 3 + 4  # 2 x 2 is no larger than its factor of rank 2
    p, q = dense + 2 * (6 + 6 + 9), dense + 2 * (10 + 10 + 7)
    assert summed(log) == [p, q, p, q]


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("rank", [1, 3])
def test_after_two_steps_a_matrix_of_no_higher_rank_has_arrived(size, rank):
    """P, from a random Q, spans the columns; the second step then misses nothing."""
    rng = torch.Generator().manual_seed(rank)
    left = torch.randn(20, rank, generator=rng)
    grads = [(left @ torch.randn(rank, 30, generator=rng)).view(-1) for _ in range(size)]
    ranks = Ranks(("acp_sgd", {"rank": rank}), size, layers=lay_out([(20, 30)]))
    first = same_bits(ranks.step(grads, [range(0, 1)]))
    mean = torch.stack(grads).mean(0)
    assert float((first - mean).norm()) > 0.1 * float(mean.norm())
    second = same_bits(ranks.step(grads, [range(0, 1)]))
    assert float((first + second - 2 * mean).norm() / mean.norm()) < 1e-3
    assert float(ranks.held().norm() / mean.norm()) < 1e-3


def test_a_layer_of_fewer_rows_than_the_rank_arrives_at_the_odd_step():
    """Its P is square, so its basis is all there is."""
    layers, (grad,) = lay_out([(3, 40)]), draws(1, 1, numel=120)
    method = ACPSGD(rank=4)
    one_step(method, grad, 0, layers)
    one_step(method, grad, 1, layers)
    assert method.state_dict()["residual"].abs().max() < 1e-5
    assert method.state_dict()["shared.layer0.left"].shape == (3, 3)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_layer_without_gradient_for_some_steps_is_not_lost(rank, first):
    """Its factors become 0, which would give 0 for ever; the second step after that misses nothing."""
    grad, nothing, total = cornered(rank), torch.zeros(600), torch.zeros(600)
    layers, method = lay_out([(20, 30)]), ACPSGD(rank=rank)
    for step, given in enumerate([nothing, nothing, grad, nothing], first):
        total += one_step(method, given, step, layers)
    torch.testing.assert_close(total, grad, rtol=1e-4, atol=1e-4)
