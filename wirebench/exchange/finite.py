"""Whether what all ranks have got alike, a sum of their weights, is finite: a watch that no step waits for."""

from collections import deque

import torch
from torch import Tensor

from wirebench.errors import Diverged

LAG = 2
"""Steps after which a GPU has passed a step, or soon will: only then the host asks."""


class Finite:
    """Looks at once on a CPU, and on a GPU `LAG` steps later, so that the host runs ahead of the device."""

    def __init__(self, device: torch.device) -> None:
        self._later = device.type == "cuda"
        self._notes: deque[tuple[int, Tensor, torch.cuda.Event]] = deque()

    def watch(self, step: int, values: Tensor) -> None:
        """Look at the values of this step, or of an earlier one; raises Diverged, at the same step on all ranks."""
        if not self._later:
            _refuse(step, all_finite(values))
            return
        flag = torch.empty((), dtype=torch.bool, pin_memory=True)
        flag.copy_(values.isfinite().all(), non_blocking=True)
        self._notes.append((step, flag, torch.cuda.current_stream(values.device).record_event()))
        while len(self._notes) > LAG:
            earlier, seen, passed = self._notes.popleft()
            passed.synchronize()
            _refuse(earlier, bool(seen))


def all_finite(values: Tensor) -> bool:
    """Whether each value is finite; the host waits for the device."""
    # A sum is cheaper to look at. It may overflow although all values are finite, so a bad one calls for a closer look.
    return bool(values.sum().isfinite()) or bool(values.isfinite().all())


def _refuse(step: int, finite: bool) -> None:
    if not finite:
        raise Diverged(f"step {step}: a worker's weights are no longer finite")
