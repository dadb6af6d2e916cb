"""Optimizers that do not go with a compressor, refused when they first step a parameter that it averages."""

from collections.abc import Callable, Collection

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from wirebench.dropin.overflow import refuse_unknown_scaler
from wirebench.dropin.usage import holds
from wirebench.errors import UserError
from wirebench.gradient.conformance import name_of
from wirebench.gradient.contract import Method


def watch(
    compressor: Method, scaler: torch.amp.GradScaler | None, parameters: Callable[[], Collection[int]]
) -> Callable[[], None]:
    """Refuse two momenta, and a scaler other than `scaler`; returns what ends the watch.

    parameters  the `id` of each parameter whose gradient `compressor` averages, as far as known
    """
    seen: set[int] = set()

    def look(optimizer: Optimizer, *_: object) -> None:
        if id(optimizer) in seen:
            return
        mine = parameters()
        if holds(optimizer, mine):
            _refuse_two_momenta(compressor, optimizer)
            refuse_unknown_scaler(compressor, scaler)
            seen.add(id(optimizer))

    return register_optimizer_step_pre_hook(look).remove


def _refuse_two_momenta(compressor: Method, optimizer: Optimizer) -> None:
    """UserError where compressor and optimizer both apply one."""
    if not compressor.owns_momentum:
        return
    without = "" if compressor.makes_update else "build the compressor with momentum=0, or "
    for group in optimizer.param_groups:
        if group.get("momentum") or group.get("betas"):
            raise UserError(
                f"compressor {name_of(compressor)!r} applies a momentum of its own, and so does "
                f"{type(optimizer).__name__}; {without}take SGD without momentum"
            )
