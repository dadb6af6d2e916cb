"""A method's own count of its steps: a world of another size numbers those of a run otherwise."""

from collections.abc import Mapping
from typing import Any

import torch

from wirebench.gradient.contract import Method

STEPS = "steps"
"""Among what all ranks share: how many steps have begun, int64 (1,)."""


class OwnSteps(Method):
    """Base of methods of which a step does something else than the one before, as the run goes on."""

    _ahead: int | None = None
    """The own number of a step, less the world's; None until the first exchange tells."""

    def own_step(self, step: int) -> int:
        """The number of the world's step `step`, which begins; from 0, and without a leap where the world changes."""
        if self._ahead is None:
            begun = self.shared.get(STEPS)
            self._ahead = 0 if begun is None else int(begun) - step
        self.shared[STEPS] = torch.tensor([step + self._ahead + 1])
        return step + self._ahead

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the next exchange is the step after it."""
        super().load_state_dict(state)
        self._ahead = None
