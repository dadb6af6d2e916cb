"""Exchanges of methods with sketches by kernels equal those by PyTorch, to the bit: averages and memories.

The programs of a launch run at once. Momenta are halves, so that sums of whole numbers are exact in any order.
"""

import math
from typing import Any

import pytest
import torch

from tests.compressors.kernels.at_once import at_once
from tests.helpers import DEVICES, both, exchange, whole_numbers
from wirebench import compressors
from wirebench.compressors.kernels import selection, sketches, tables, together
from wirebench.gradient.flat import Layer

pytestmark = pytest.mark.sampled(4)

NUMEL = 260
LAYERS = (Layer("a", 0, 5, 1), Layer("b", 8, 11, 1), Layer("c", 11, NUMEL, 2, 3))
METHODS: dict[str, dict[str, Any]] = {
    "gs_sgd": {"momentum": 0.5},
    "gs_sgd, p2 = 1": {"momentum": 0.5, "p2": 1, "masking": False},
    "gs_sgd, bitmap": {"momentum": 0.0, "indices": "bitmap", "agree": "majority", "broadcast": "indices"},
    "gs_sgd, delta": {"momentum": 0.5, "indices": "delta"},
    "gs_sgd, sketch": {"momentum": 0.5, "broadcast": "sketch", "p1": 0.0},
    "gs_sgd, random": {"momentum": 0.5, "fill": "random", "p2": 1},
    "gs_sgd, random and gaps": {"momentum": 0.5, "fill": "random", "p2": 1, "p1": 0.0, "indices": "delta"},
    "gs_sgd, reference": {"momentum": 0.5, "hash": "reference"},
    "sketched_sgd": {"momentum": 0.5, "columns_per_entry": 8.0},
    "fetch_sgd": {"momentum": 0.5},
    "fetch_sgd, subtract": {"momentum": 0.5, "clear": "subtract", "columns_per_entry": 20.0},
    "iblt": {"density": 0.03},
    "iblt, stalled": {"density": 0.05, "room": 0.6},
}


@pytest.fixture(params=DEVICES)
def device(request, monkeypatch):
    """Where kernels run: on the CPU as three programs at once, on small tiles."""
    if request.param == "cuda":
        yield request.param
        return
    values = (together, "TILE", 64), (tables, "BLOCK", 64), (sketches, "BLOCK", 256), (selection, "PROGRAMS", 2)
    for module, name, value in values:
        monkeypatch.setattr(module, name, value)
    with at_once(monkeypatch, 3):
        yield request.param


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", METHODS)
def test_averages_and_memories_are_the_twins(device, name, monkeypatch):
    """Also with gaps between layers; a gradient that is not finite comes last."""
    options = {"density": 0.02, **METHODS[name]}
    places = iter(("cpu", device))

    def call() -> list[torch.Tensor]:
        where, found = next(places), []
        ranks = [compressors.build(name.split(",")[0], **options) for _ in range(2)]
        for step in range(3):
            grads = whole_numbers(2, step, NUMEL, most=99)
            for grad in grads:
                grad[[5, 6, 7]] = 0
            if step == 2:
                grads[1][20] = math.inf
            averages = exchange(ranks, [each.to(where) for each in grads], LAYERS, step=step)
            assert averages[0].nan_to_num().equal(averages[1].nan_to_num())
            found.append(averages[0].cpu())
            if step < 2:
                found += [tensor.to("cpu", copy=True) for rank in ranks for tensor in rank.state_dict().values()]
        assert averages[0].isnan().any()
        return found

    wanted, got = both(monkeypatch, call)
    torch.testing.assert_close(got, wanted, rtol=0, atol=0, equal_nan=True)
