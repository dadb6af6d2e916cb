"""Compressors that return updates: their results stay what they are, and outlive a change of the number of ranks."""

import json
from pathlib import Path

import pytest
import torch

import compressors
from tests.compressors.updates import NUMEL, gradients, step_of, world_of

GOLDEN = Path(__file__).parent / "golden.json"
"""By method the update of the last of STEPS steps, as `last_of` gave it when its oracle agreed with it."""
STEPS = 6
FORMS: dict[str, dict[str, int]] = {
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
    assert FORMS.keys() == {name for name in compressors.available() if compressors.class_of(name).makes_update}


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
