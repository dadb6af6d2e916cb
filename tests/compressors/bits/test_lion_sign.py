"""lion_sign against Distributed Lion written element by element, and the bits that it sends."""

import math

import pytest
import torch

from tests.compressors.updates import NUMEL, gradients, step_of, world_of
from wirebench.compressors.common.lion import signs


@pytest.mark.parametrize(("ranks", "beta1", "beta2"), [(3, 0.9, 0.99), (2, 0.5, 0.8), (1, 0.9, 0.99)])
def test_three_steps_are_the_papers(ranks: int, beta1: float, beta2: float) -> None:
    methods = world_of("lion_sign", ranks, beta1=beta1, beta2=beta2)
    momenta = [[0.0] * NUMEL for _ in range(ranks)]
    for step in range(3):
        grads = gradients(step, ranks)
        result = step_of(methods, step, grads).tolist()
        for place in range(NUMEL):
            votes = 0
            for momentum, grad in zip(momenta, grads, strict=True):
                here = grad[place].item()
                votes += 1 if beta1 * momentum[place] + (1 - beta1) * here > 0 else -1
                momentum[place] = beta2 * momentum[place] + (1 - beta2) * here
            assert result[place] == (votes > 0) - (votes < 0)
        for method, momentum in zip(methods, momenta, strict=True):
            assert method.memory.state_dict()["velocity"].tolist() == pytest.approx(momentum, abs=1e-6)


def test_signs_of_what_is_not_finite() -> None:

    found = signs(torch.tensor([-2.0, 0.0, 3.0, math.inf, -math.inf, math.nan]))
    assert found[:3].tolist() == [-1.0, 0.0, 1.0] and not found[3:].isfinite().any()
