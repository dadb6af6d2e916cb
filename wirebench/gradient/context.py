"""What an exchange knows beside its bucket: rank, world size, step, and random draws that all ranks share."""

from dataclasses import dataclass

import torch

from wirebench.utils.rng import generator


@dataclass(frozen=True, slots=True)
class ExchangeContext:
    """One rank's view at one step.

    rank       this one's, from 0
    size       the world size: number of ranks
    step       since the start of the run, from 0; epoch: the one that it lies in
    seed       the run's, the same on every rank
    measuring  whether methods fill their `measures` in this step (metrics.py); the same on every rank
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
