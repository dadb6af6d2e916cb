"""What a training pass costs in fp32 and in bf16 autocast on this device: a short trial that leaves no trace.

bf16 pays only where the device multiplies it: a CPU without AVX-512 BF16 or AMX emulates it, several times slower.
"""

import copy
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from wirebench.telemetry.timers import HostTimer

PASSES = 3
WORTH = 0.9
ENOUGH_SECONDS = 10.0
"""The trial ends after the turn in which the passes exceed this time: a difference between slow passes is no noise."""


class PassSeconds(NamedTuple):
    """Median seconds of a forward and backward pass."""

    fp32: float
    bf16: float

    @property
    def bf16_is_faster(self) -> bool:
        """Whether bf16 is worth its rounding: by more than two trials of one machine differ."""
        return self.bf16 < WORTH * self.fp32


def time_passes(model: nn.Module, images: Tensor, loss_of: Callable[[Any], Tensor], timer: HostTimer) -> PassSeconds:
    """Time passes of a copy of the model over `images` (N, C, H, W): three in each precision, interleaved.

    loss_of  scalar loss of what the model returns
    timer    of the device that model and images are on
    One more pass of each goes first and is not counted. The model, its gradients and the random streams do not change.
    """
    taken: dict[bool, list[float]] = {False: [], True: []}
    with torch.random.fork_rng([images.device] if images.device.type == "cuda" else []):
        probe = copy.deepcopy(model)
        for turn in range(PASSES + 1):
            for bf16, seconds in taken.items():
                seconds.append(_pass_seconds(probe, images, loss_of, timer, bf16))
            if turn and sum(map(sum, taken.values())) > ENOUGH_SECONDS:
                break
    # The first pass of each prepares kernels and memory.
    return PassSeconds(*(median(seconds[1:]) for seconds in taken.values()))


def _pass_seconds(
    probe: nn.Module, images: Tensor, loss_of: Callable[[Any], Tensor], timer: HostTimer, bf16: bool
) -> float:
    probe.zero_grad()
    timer.synchronize()
    begin = timer.mark()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16):
        output = probe(images)
    loss_of(output).backward()
    end = timer.mark()
    timer.synchronize()
    return timer.seconds(begin, end)
