"""An optimizer whose updates come later than the loop thinks, each with the learning rate of its own step."""

from typing import Any

from torch.optim import Optimizer


class HeldRates:
    """What a split schedule steps: `optimizer`, with the rates that its groups had at `hold`.

    The loop steps its learning-rate schedule after a step; the updates of that step come within the next forward pass.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._rates: list[Any] = []

    def hold(self) -> None:
        """The updates that follow are of the step that ends now."""
        self._rates = [group["lr"] for group in self.optimizer.param_groups]

    def step(self) -> None:
        """Update the parameters that have a gradient."""
        now = [group["lr"] for group in self.optimizer.param_groups]
        self._set(self._rates)
        self.optimizer.step()
        self._set(now)

    def _set(self, rates: list[Any]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
