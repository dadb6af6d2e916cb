"""Warns when a compressor's residual grows without bound, and names the setting to change.

With error feedback a residual grows until as much leaves it as comes in. A method that sends the share p of the entries
needs some 1 / p steps for that; then the norm of its residual stays where it is. One that still grows then sends too
little: the threshold is too high, or the approximation too coarse for the gradient.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

EVERY = 50
"""Steps between two readings of the norm; each is a pass over the residual, and on a GPU the host waits for it."""

MOST_NORMS = 4096
"""Norms that are kept, evenly spread: all of the first 200,000 steps."""

TURNOVERS = 5
"""Times 1 / p steps before growth is suspicious: by then a residual that has a bound is near it."""

LEAST_DENSITY, USUAL_DENSITY = 1e-3, 1e-2
"""The density that is assumed of sparser methods, as a bound on the wait; and of methods that know no density."""

GROWTH = 1.3
"""A residual that is nothing but noise grows by sqrt(2) while the steps double, one that is never sent by 2."""


class ResidualWatch:
    """Looks at one rank's residual, or at the sketch of the residual that all ranks share.

    name     of the compressor; setting: its option that bounds the residual; both go into the warning
    density  share of the entries that it sends, None where it knows none
    warn     called with the warning, once
    begin    the first step that counts: during a warm-up more is sent, and after it the residual grows
    size     number of ranks
    every    steps from one exchange to the next
    """

    def __init__(
        self, name: str, setting: str, density: float | None, warn: Callable[[str], None], begin: int = 0,
        size: int = 1, every: int = 1,
    ) -> None:  # fmt: skip
        self.size = size
        self.name, self.setting, self.warn, self.begin = name, setting, warn, begin
        share = max(density or USUAL_DENSITY, LEAST_DENSITY)
        self.settled_steps = int(TURNOVERS / share) * every
        self.norms: dict[int, float] = {}
        self.spacing = EVERY
        """Steps from one norm that is kept to the next; it doubles whenever there are MOST_NORMS."""
        self.first: int | None = None
        self.warned = False

    def look(self, step: int, held_back: Callable[[], Tensor | None]) -> None:
        """Read the norm after the exchange of `step`, if it is one of EVERY steps, and warn if it still grows.

        held_back  gives the residual, of any shape; None for a method without one
        """
        if self.warned or step < self.begin or step % EVERY or (residual := held_back()) is None:
            return
        if self.first is None:
            self.first = step
        norm = torch.linalg.vector_norm(residual).item()
        # The norm now against the one at half the residual's age: a bounded one has stopped growing by then.
        age = step - self.first
        if age % self.spacing == 0:
            self.norms[step] = norm
        if len(self.norms) > MOST_NORMS:
            self.spacing *= 2
            self.norms = {at: each for at, each in self.norms.items() if (at - self.first) % self.spacing == 0}
        middle = self.first + age // 2 // self.spacing * self.spacing
        before = self.norms.get(middle, 0.0)
        if age >= self.settled_steps and before and norm > GROWTH * before:
            self.warned = True
            self.warn(
                f"step {step}: the residual of {self.name} grows without bound: its norm is "
                f"{norm:.3g}, {norm / before:.2g} times as large as at step {middle}; "
                f"change compressor.{self.setting}"
            )

    def state_dict(self) -> dict[str, Any]:
        """The norms seen so far, as JSON."""
        norms = list(self.norms.items())
        return {
            "size": self.size, "first": self.first, "norms": norms, "spacing": self.spacing, "warned": self.warned,
        }  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; norms of another world size do not count."""
        if state["size"] == self.size:
            self.first, self.norms, self.warned = state["first"], dict(state["norms"]), state["warned"]
            self.spacing = state.get("spacing", EVERY)
