"""The learning rate of a step."""

import math

import torch

from wirebench.config.loader import OptimizerConfig

_ONE_CYCLE_RISE = 0.3  # share of the run, where warmup_epochs does not say
_ONE_CYCLE_START = 1 / 25  # of the peak


def learning_rate(section: OptimizerConfig, epoch_fraction: float, epochs: float, workers: int) -> float:
    """The rate of the step that starts `epoch_fraction` epochs (epoch + step / steps per epoch) into the run.

    A pure function, so a resumed run needs no state of it. `epochs` is the length of the run. The peak is section.lr,
    times `workers` if scale_lr (Goyal et al. 2017). Over the first warmup_epochs the rate rises linearly to the peak.
    It starts from peak / workers, one worker's rate by the same rule (from 0 with one worker). one_cycle starts from
    peak / 25 and, if warmup_epochs is 0, rises for 30 % of the run (after Smith 2018). Then the peak is multiplied by
      constant   1
      step       gamma for every milestone that is reached, in epochs from the start of the run
      cosine     half a cosine wave from 1 at the end of the rise to 0 at the end of the run
      one_cycle  a line from 1 at the end of the rise to 0 at the end of the run
    """
    peak = section.lr * (workers if section.scale_lr else 1)
    rise_epochs = section.warmup_epochs
    start = peak / workers if workers > 1 else 0.0
    if section.schedule == "one_cycle":
        rise_epochs = rise_epochs or _ONE_CYCLE_RISE * epochs
        start = peak * _ONE_CYCLE_START
    if epoch_fraction < rise_epochs:
        return start + (peak - start) * epoch_fraction / rise_epochs
    return peak * _factor(section, epoch_fraction, rise_epochs, epochs)


def apply_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Let the next step use `rate`, in every parameter group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def _factor(section: OptimizerConfig, epoch_fraction: float, rise_epochs: float, epochs: float) -> float:
    """The factor of the schedule on the peak, after the rise."""
    if section.schedule == "constant":
        return 1.0
    if section.schedule == "step":
        return section.gamma ** sum(milestone <= epoch_fraction for milestone in section.milestones)
    if epoch_fraction >= epochs:
        return 0.0
    done = (epoch_fraction - rise_epochs) / (epochs - rise_epochs)
    return 1 - done if section.schedule == "one_cycle" else (1 + math.cos(math.pi * done)) / 2
