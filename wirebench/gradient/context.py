"""What an exchange knows of the world: who it is, how many there are, when it is, and the draws all ranks share."""

from dataclasses import dataclass

import torch

from wirebench.utils.rng import generator


@dataclass(frozen=True, slots=True)
class ExchangeContext:
    """One rank's view at one step.

    seed       the run's, the same on every rank
    measuring  whether this step's exchanges take numbers of themselves (measures.py); the same on every rank
    """

    rank: int
    size: int
    step: int = 0
    epoch: int = 0
    seed: int = 0
    measuring: bool = False

    def shared_rng(self, *key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
        """A generator seeded alike on every rank for (seed, step, key): a new draw each step, the same everywhere."""
        return generator("shared", self.seed, self.step, *key, device=device)
