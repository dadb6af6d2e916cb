"""A method's own step count, because the world's step numbers jump when a run resumes with another world size."""

from collections.abc import Mapping
from typing import Any

import torch

from wirebench.gradient.contract import Method

STEPS = "steps"
"""Among what all ranks share: how many steps have begun, int64 (1,)."""


class OwnSteps(Method):
    """Base of methods whose steps follow a schedule that begins with the run."""

    _ahead: int | None = None
    """The method's number of a step minus the world's; None before the first exchange."""

    def own_step(self, step: int) -> int:
        """The method's number of the world's step `step`, which begins; from 0, continuous when the world changes."""
        if self._ahead is None:
            begun = self.shared.get(STEPS)
            self._ahead = 0 if begun is None else int(begun) - step
        self.shared[STEPS] = torch.tensor([step + self._ahead + 1])
        return step + self._ahead

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the next exchange is the step after it."""
        super().load_state_dict(state)
        self._ahead = None
