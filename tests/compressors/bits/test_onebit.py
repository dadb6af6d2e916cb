import pytest
import torch

from tests.helpers import exchange, lay_out
from wirebench.compressors.bits.blocks import Run
from wirebench.compressors.onebit import OneBit, means
from wirebench.gradient.flat import Layer


def ranks(size: int, **options) -> list[OneBit]:
    return [OneBit(**options) for _ in range(size)]


def groups_of(layer: Layer, per: str) -> list[slice]:
    """The places that share two numbers."""
    width = layer.numel // layer.rows
    if per == "layer" or layer.ndim == 1 or width < 64:
        return [slice(layer.start, layer.stop)]
    return [slice(start, start + width) for start in range(layer.start, layer.stop, width)]


@pytest.mark.parametrize("per", ["row", "layer"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_equals_the_plain_twin(size, per):
    layers = lay_out([(3, 64), (5, 63), (100,), (2, 10, 8), (1, 1)])
    numel = layers[-1].stop
    places = [each for layer in layers for each in groups_of(layer, per)]
    assert len(places) == (3 + 1 + 1 + 2 + 1 if per == "row" else 5)
    mine, residuals = ranks(size, values_per=per), [torch.zeros(numel) for _ in range(size)]
    rng = torch.Generator().manual_seed(size)
    for _ in range(4):
        grads = [torch.randn(numel, generator=rng) for _ in range(size)]
        wanted = torch.zeros(numel)
        for residual, grad in zip(residuals, grads, strict=True):
            residual += grad
            for place in places:
                v = residual[place]
                high, low = (part.mean() if part.numel() else torch.tensor(0.0) for part in (v[v >= 0], v[v < 0]))
                sent = torch.where(v < 0, low, high)
                residual[place] = v - sent
                wanted[place] += sent / size
        for result in exchange(mine, grads, layers):
            torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
    for rank, residual in zip(mine, residuals, strict=True):
        torch.testing.assert_close(rank.state_dict()["residual"], residual, rtol=1e-4, atol=1e-5)


def test_small_numbers_beside_large_ones_of_the_other_sign_keep_their_mean():
    x = torch.cat([torch.full((100_000,), 1e3), torch.tensor([-1e-3])])
    high, low = means(x, (Run(x.numel(), 1),))
    assert high.item() == pytest.approx(1e3, rel=1e-5)
    assert low.item() == pytest.approx(-1e-3, rel=1e-5)
