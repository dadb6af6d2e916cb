"""An optimizer whose updates come later than the loop thinks, each with the learning rate of its own step."""

from typing import Any

from torch.optim import Optimizer


class HeldRates:
    """The optimizer of a split schedule: `optimizer`, with the settings that its groups had at `hold`.

    The loop steps its schedule of rates, momenta or decays after a step; the updates of that step come within the next
    forward pass.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self._held: list[dict[str, Any]] = []

    def hold(self) -> None:
        """The updates that follow are of the step that ends now."""
        self._held = self._settings()

    def step(self) -> None:
        """Update the parameters that have a gradient."""
        now = self._settings()
        self._set(self._held)
        self.optimizer.step()
        self._set(now)

    def _settings(self) -> list[dict[str, Any]]:
        return [{key: each for key, each in group.items() if key != "params"} for group in self.optimizer.param_groups]

    def _set(self, settings: list[dict[str, Any]]) -> None:
        # A group that was added since has its own settings.
        for group, held in zip(self.optimizer.param_groups, settings, strict=False):
            group.update(held)
