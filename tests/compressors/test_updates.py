"""Compressors that return updates, and others of today: their results stay what they are, and outlive a change of the
number of ranks.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.compressors.updates import NUMEL, gradients, step_of, world_of
from wirebench import compressors

GOLDEN = Path(__file__).parent / "golden.json"
"""By method the update of the last of STEPS steps, as `last_of` gave it when its oracle agreed with it."""
STEPS = 6
AVERAGES = ("chunk_topk", "quantised_sum")
"""What returns an average, and is here for its golden values."""
FORMS: dict[str, dict[str, int]] = {
    "chunk_topk": {"chunk": 16, "k": 3},
    "quantised_sum": {"chunk": 8},
    "demo": {"chunk": 4, "k": 3},
    "dion": {},
    "lion_sign": {},
    "zero_one_adam": {"kappa": 1, "freeze_step": 2, "double_every": 2, "longest": 4},
}


def last_of(name: str) -> torch.Tensor:
    """The update of the last step, of three ranks."""
    methods = world_of(name, **FORMS[name])
    return [step_of(methods, step, gradients(step)) for step in range(STEPS)][-1]


def test_all_of_them_are_here() -> None:
    updates = {name for name in compressors.available() if compressors.class_of(name).makes_update}
    assert FORMS.keys() == updates | set(AVERAGES)


@pytest.mark.parametrize("name", FORMS)
def test_the_update_is_the_same_as_ever(name: str) -> None:
    wanted = json.loads(GOLDEN.read_text())[name]
    torch.testing.assert_close(last_of(name), torch.tensor(wanted), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("steps", [2, 5])
def test_two_ranks_go_on_from_three(name: str, steps: int) -> None:
    """What each rank remembers keeps its mean; what all share stays, and all agree, within an interval, too."""
    before = world_of(name, **FORMS[name])
    for step in range(steps):
        step_of(before, step, gradients(step))
    states = [method.state_dict() for method in before]
    after = world_of(name, 2, **FORMS[name])
    after[0].take_over(states[::2], weight=2 / 3)
    after[1].take_over(states[1::2], weight=2 / 3)
    for kept in after[0].memory.names:
        old, new = (
            [method.memory.state_dict().get(kept, torch.zeros(NUMEL)) for method in world] for world in (before, after)
        )
        torch.testing.assert_close(torch.stack(new).mean(0), torch.stack(old).mean(0), atol=1e-6, rtol=1e-5)
    for key, tensor in before[0].shared.items():
        assert all(torch.equal(method.shared[key], tensor) for method in after)
    step_of(after, steps, gradients(steps, 2))


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
