import functools

import pytest
import torch
from torch import Tensor

from tests.compressors.test_contract import Ranks, same_bits
from tests.helpers import Log, answer_all, cut, lay_out, normal
from wirebench.compressors.powersgd import PowerSGD
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.requests import Sum

SHAPES = [(6, 2, 5), (5,), (6, 10), (3,), (9, 7), (2, 2)]
LAYERS = lay_out(SHAPES)
NUMEL = LAYERS[-1].stop
draws = functools.partial(normal, numel=NUMEL)
MATRICES = [layer for layer in LAYERS if layer.name in ("layer0", "layer2", "layer4")]
CUTS = ([range(0, 6)], [range(0, 1), range(1, 3), range(3, 6)], [range(0, 4), range(4, 6)])


def one_step(method, grad, step=0, layers=LAYERS, log: Log | None = None, measuring=False) -> Tensor:
    """The result of a world of one rank, for the gradient in one bucket."""
    (bucket,) = cut(grad.clone(), layers, [range(len(layers))])
    return answer_all([method.exchange(bucket, ExchangeContext(0, 1, step, measuring=measuring))], log)[0]


def summed(log: Log) -> list[int]:
    """Elements of each message; all are sums."""
    requests = [same[0] for same in log]
    assert all(isinstance(request, Sum) for request in requests)
    return [request.tensor.numel() for request in requests if isinstance(request, Sum)]


class Twin:
    """PowerSGD as its algorithms stand, layer by layer, fp64, with Gram and Schmidt; residuals less the average."""

    def __init__(self, size: int, rank: int, starts: dict[str, Tensor]) -> None:
        self.q = {name: start.double().T.clone() for name, start in starts.items()}
        self.rank, self.residuals = rank, [torch.zeros(NUMEL, dtype=torch.float64) for _ in range(size)]

    def step(self, grads: list[Tensor]) -> Tensor:
        result = torch.stack(grads).double().mean(0)
        for layer in MATRICES:
            piece = slice(layer.start, layer.stop)
            for residual, grad in zip(self.residuals, grads, strict=True):
                residual[piece] += grad[piece]
            matrices = [residual[piece].view(layer.rows, -1) for residual in self.residuals]
            p = torch.stack([m @ self.q[layer.name] for m in matrices]).mean(0)
            for j in range(self.rank):
                for i in range(j):
                    p[:, j] -= (p[:, i] @ p[:, j]) * p[:, i]
                p[:, j] /= p[:, j].norm()
            q = self.q[layer.name] = torch.stack([m.T @ p for m in matrices]).mean(0)
            for m in matrices:
                m -= p @ q.T
            result[piece] = (p @ q.T).view(-1)
        return result


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("rank", [1, 2])
def test_equals_the_algorithm_of_the_paper(size, rank):
    rng = torch.Generator().manual_seed(size)
    starts = {layer.name: torch.randn(rank, layer.numel // layer.rows, generator=rng) for layer in MATRICES}
    options = {"rank": rank, "min_compression_rate": 1.0}
    ranks, twin = Ranks(("powersgd", options), size, layers=LAYERS), Twin(size, rank, starts)
    for method in ranks.ranks:
        method.load_state_dict({f"shared.{name}.right": start for name, start in starts.items()})
    for step in range(6):
        grads = draws(size, step)
        result = same_bits(ranks.step(grads, CUTS[step % len(CUTS)]))
        torch.testing.assert_close(result.double(), twin.step(grads), rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(ranks.held(), torch.stack(twin.residuals).sum(0), rtol=1e-4, atol=2e-5)


def test_residuals_hold_less_of_what_differs_between_ranks_than_with_the_average_subtracted():
    options = {"rank": 1, "min_compression_rate": 1.0}
    ranks = Ranks(("powersgd", options), 2, layers=LAYERS)
    mean, apart = draws(2, 1)
    grads = [mean + 4 * apart, mean - 4 * apart]
    starts = {layer.name: torch.ones(1, layer.numel // layer.rows) for layer in MATRICES}
    twin = Twin(2, 1, starts)
    for _ in range(60):
        ranks.step(grads, CUTS[0])
        twin.step(grads)
    largest = max(float(rank.state_dict()["residual"].norm()) for rank in ranks.ranks)
    assert largest < min(float(residual.norm()) for residual in twin.residuals) / 3


@pytest.mark.sampled(8)
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_a_matrix_of_no_higher_rank_is_sent_at_once(size, rank, seed):
    """All ranks' matrices have the same columns. Where Q misses some of their rows nearly, rounding shows."""
    rng = torch.Generator().manual_seed(seed)
    left = torch.randn(20, rank, generator=rng)
    grads = [(left @ torch.randn(rank, 30, generator=rng)).view(-1) for _ in range(size)]
    ranks, mean = Ranks(("powersgd", {"rank": rank}), size, layers=lay_out([(20, 30)])), torch.stack(grads).mean(0)
    result = same_bits(ranks.step(grads, [range(0, 1)]))
    assert float((result - mean).norm() / mean.norm()) < 1e-4
    assert all(float(method.state_dict()["residual"].norm() / mean.norm()) < 1e-3 for method in ranks.ranks)


def test_two_sums_carry_the_factors_and_what_is_dense():
    log: Log = []
    one_step(PowerSGD(rank=2, min_compression_rate=1.0), torch.ones(NUMEL), log=log)
    dense = 5 + 3 + 4  # 2 x 2 has no smaller factors
    assert summed(log) == [dense + 2 * (6 + 6 + 9), 2 * (10 + 10 + 7)]


def test_the_start_belongs_to_the_layers_place_and_not_to_its_name_or_the_step():
    (grad,) = draws(1, 1)
    first, _, alike = (slice(layer.start, layer.stop) for layer in LAYERS[:3])
    grad[alike] = grad[first]
    at_0, at_7 = (one_step(PowerSGD(rank=1), grad, step) for step in (0, 7))
    assert torch.equal(at_0, at_7)
    renamed = tuple(layer._replace(name=layer.name + "x") for layer in LAYERS)
    assert torch.equal(one_step(PowerSGD(rank=1), grad, layers=renamed), at_0)
    assert not torch.equal(at_0[first], at_0[alike])


def test_without_warm_start_each_step_draws_anew():
    (grad,) = draws(1, 1)
    method = PowerSGD(rank=1, warm_start=False, error_feedback=False)
    at_0, at_1, again = (one_step(method, grad, step) for step in (0, 1, 0))
    assert torch.equal(at_0, again)
    assert not torch.equal(at_0, at_1)
    assert not method.state_dict()


def cornered(rank: int) -> Tensor:
    """A matrix 20 x 30 of this rank without its first rows and columns, which are the basis that QR makes of zeros."""
    rng = torch.Generator().manual_seed(1)
    left, right = torch.randn(20, rank, generator=rng), torch.randn(rank, 30, generator=rng)
    left[:rank], right[:, :rank] = 0, 0
    return (left @ right).view(-1)


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_layer_without_gradient_for_a_step_is_not_lost(rank, feedback):
    """Its Q becomes 0, which would give 0 for ever. (With feedback, rounding in the residual could hide it.)"""
    layers, method = lay_out([(20, 30)]), PowerSGD(rank=rank, error_feedback=feedback)
    grad, nothing = cornered(rank), torch.zeros(600)
    for step, given in enumerate([nothing, nothing, grad] if feedback else [grad, nothing, nothing, grad]):
        torch.testing.assert_close(one_step(method, given, step, layers), given, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("scale", [2.0**-80, 2.0**60])
def test_small_and_large_gradients_are_treated_alike(scale):
    plain, scaled = PowerSGD(rank=2, min_compression_rate=1.0), PowerSGD(rank=2, min_compression_rate=1.0)
    for step, grad in enumerate(draws(4, 1)):
        wanted = one_step(plain, grad, step)
        torch.testing.assert_close(one_step(scaled, grad * scale, step) / scale, wanted, rtol=1e-4, atol=1e-5)


def test_it_measures_what_stays_behind():
    """Of diag(3, 1), sent along its first axis, 1 of 10 stays."""
    layers, method = lay_out([(3, 3)]), PowerSGD(rank=1, min_compression_rate=1.0)
    method.load_state_dict({"shared.layer0.right": torch.tensor([[1.0, 0.0, 0.0]])})
    one_step(method, torch.diag(torch.tensor([3.0, 1.0, 0.0])).view(-1), layers=layers, measuring=True)
    assert method.measures.names == ["kept_energy"]
    torch.testing.assert_close(method.measures.take()[:, 0], torch.tensor([1.0, 10.0], dtype=torch.float64))


def test_factors_of_a_step_that_overflowed_are_drawn_anew():
    method = PowerSGD(error_feedback=False, min_compression_rate=1.0)
    assert not one_step(method, torch.full((NUMEL,), torch.inf)).isfinite().all()
    for step in (1, 2):
        assert one_step(method, draws(1, step)[0], step).isfinite().all()
