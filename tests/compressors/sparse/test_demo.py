"""demo against sums of cosines written out, over the ranks that sent; its blocks, and the bytes that it sends."""

import math

import pytest
import torch
from torch import Tensor

from tests.compressors.updates import LAYERS, NUMEL, SHAPES, gradients, step_of, world_of
from tests.helpers import cut
from wirebench.compressors.sparse.frequencies import frequencies_of

CHUNK, K = 4, 3


def basis(size: int, frequency: int, place: int) -> float:
    scale = math.sqrt((1 if frequency == 0 else 2) / size)
    return scale * math.cos(math.pi * (2 * place + 1) * frequency / (2 * size))


def blocks() -> list[tuple[list[list[int]], int]]:
    """By block its places in the gradient, as rows, and how many frequencies of it are sent."""
    found = []
    for shape, layer in zip(SHAPES, LAYERS, strict=True):
        rows = shape[0] if len(shape) > 1 else 1
        columns = layer.numel // rows
        height = max(n for n in range(1, CHUNK + 1) if rows % n == 0)
        width = max(n for n in range(1, CHUNK + 1) if columns % n == 0)
        for top in range(0, rows, height):
            for left in range(0, columns, width):
                places = [[layer.start + (top + i) * columns + left + j for j in range(width)] for i in range(height)]
                found.append((places, min(K, height * width)))
    return found


def spectrum_of(values: Tensor, places: list[list[int]]) -> dict[tuple[int, int], float]:
    height, width = len(places), len(places[0])
    return {
        (u, v): math.fsum(
            values[places[i][j]].item() * basis(height, u, i) * basis(width, v, j)
            for i in range(height)
            for j in range(width)
        )
        for u in range(height)
        for v in range(width)
    }


def back(spectrum: dict[tuple[int, int], float], places: list[list[int]], i: int, j: int) -> float:
    height, width = len(places), len(places[0])
    return math.fsum(value * basis(height, u, i) * basis(width, v, j) for (u, v), value in spectrum.items())


@pytest.mark.parametrize("beta", [0.999, 0.0])
def test_three_steps_are_the_papers(beta: float) -> None:
    methods = world_of("demo", chunk=CHUNK, k=K, beta=beta)
    momenta = [torch.zeros(NUMEL, dtype=torch.float64) for _ in methods]
    for step in range(3):
        grads = gradients(step)
        result = step_of(methods, step, grads)
        for momentum, grad in zip(momenta, grads, strict=True):
            momentum.mul_(beta).add_(grad)
        for places, k in blocks():
            sent: dict[tuple[int, int], list[float]] = {}
            for momentum in momenta:
                spectrum = spectrum_of(momentum, places)
                kept = dict(sorted(spectrum.items(), key=lambda item: -abs(item[1]))[:k])
                for frequency, value in kept.items():
                    sent.setdefault(frequency, []).append(value)
                for i, row in enumerate(places):
                    for j, place in enumerate(row):
                        momentum[place] -= back(kept, places, i, j)
            average = {frequency: math.fsum(values) / len(values) for frequency, values in sent.items()}
            for i, row in enumerate(places):
                for j, place in enumerate(row):
                    update = back(average, places, i, j)
                    assert abs(update) < 1e-5 or result[place].item() == math.copysign(1, update)
        for method, momentum in zip(methods, momenta, strict=True):
            torch.testing.assert_close(method.memory.state_dict()["velocity"].double(), momentum, atol=1e-5, rtol=1e-5)


def test_the_transform_is_orthonormal_and_its_own_inverse() -> None:
    values = gradients(0)[0]
    [bucket] = cut(values, LAYERS, [range(len(LAYERS))])
    blocks_ = frequencies_of(bucket, 4, 3)
    spectrum = blocks_.forward(values)
    assert spectrum.norm().item() == pytest.approx(values.norm().item(), rel=1e-6)
    torch.testing.assert_close(blocks_.backward(spectrum, torch.zeros(NUMEL)), values, atol=1e-6, rtol=1e-5)
    constant = blocks_.forward(torch.ones(NUMEL))
    assert int(constant.abs().gt(1e-6).sum()) == len(blocks()), "of a constant only the lowest frequency is left"
