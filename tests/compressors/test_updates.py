"""Methods that count their own steps, where the number of ranks changes."""

from typing import Any

import pytest
import torch

from tests.compressors.updates import gradients, step_of, world_of


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("zero_one_adam", {"kappa": 2, "freeze_step": 8, "double_every": 4, "longest": 2}),
        ("powersgd", {"start_step": 8, "min_compression_rate": 1.0}),
        ("acp_sgd", {"start_step": 8, "rank": 1}),
        ("oktopk", {"dense_steps": 8, "density": 0.1}),
    ],
)
def test_a_method_counts_its_own_steps_where_another_world_counts_otherwise(name: str, options: dict[str, Any]) -> None:
    """Four ranks' steps 0 to 4 are two ranks' 0 to 9: the next one is a sixth step all the same."""
    whole, before = (world_of(name, 2, **options) for _ in range(2))
    for step in range(5):
        for world in (whole, before):
            step_of(world, step, gradients(step, 2))
    after = world_of(name, 2, **options)
    for mine, method in zip(after, before, strict=True):
        mine.take_over([method.state_dict()])
    # By eight steps or ten, so that turns (a factor, a threshold) are the same ones in both.
    for step in range(5, 14):
        grads = gradients(step, 2)
        assert torch.equal(step_of(after, step + 64, grads), step_of(whole, step, grads)), step
