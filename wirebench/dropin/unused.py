"""Parameters that no rank has used in a step: they have no gradient then, as under DistributedDataParallel."""

from collections.abc import Sequence

import torch

from wirebench.comm.engine import Engine
from wirebench.gradient.flat import FlatGradient


class UnusedEverywhere:
    """Sets `.grad` to None where no rank has used a parameter, so that no optimizer decays it or moves it on.

    It costs a small sum over ranks in each step, and so only a model pays for it that had an unused parameter in its
    first step, on any rank. Another model's unused parameters have a gradient of zeros.
    """

    def __init__(self, engine: Engine, flat: FlatGradient, unused: Sequence[int]) -> None:
        self.engine, self.flat = engine, flat
        self.active = bool(engine.sum_over_ranks([torch.tensor([len(unused)])]).item())

    def drop(self, unused: Sequence[int]) -> None:
        """After an exchange, with the layers that this rank has not used; every rank calls it."""
        if not self.active:
            return
        used = torch.ones(len(self.flat.layers), dtype=torch.int32)
        used[list(unused)] = 0
        total = self.engine.sum_over_ranks([used])
        for position in (total == 0).nonzero().flatten().tolist():
            # A residual of earlier steps may have been sent for it: then it has a gradient.
            if not bool(self.flat.views[position].any()):
                self.flat.parameters[position].grad = None
