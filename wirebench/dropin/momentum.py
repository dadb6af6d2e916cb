"""A compressor that applies a momentum of its own, and an optimizer that does: both would be one too many."""

from collections.abc import Callable, Collection

from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from wirebench.errors import UserError
from wirebench.gradient.conformance import name_of
from wirebench.gradient.contract import Method


def refuse_two(compressor: Method, optimizer: Optimizer) -> None:
    """UserError where both apply a momentum."""
    if not compressor.owns_momentum:
        return
    without = "" if compressor.makes_update else "build the compressor with momentum=0, or "
    for group in optimizer.param_groups:
        if group.get("momentum") or group.get("betas"):
            raise UserError(
                f"compressor {name_of(compressor)!r} applies a momentum of its own, and so does "
                f"{type(optimizer).__name__}; {without}take SGD without momentum"
            )


def watch(compressor: Method, parameters: Callable[[], Collection[int]]) -> Callable[[], None]:
    """Refuse two momenta when an optimizer steps that holds one of these parameters; returns what ends the watch.

    parameters  the `id` of each parameter whose gradient `compressor` averages, as far as they are known
    """
    seen: set[int] = set()

    def look(optimizer: Optimizer, *_: object) -> None:
        if id(optimizer) in seen:
            return
        mine = parameters()
        if any(id(p) in mine for group in optimizer.param_groups for p in group["params"]):
            seen.add(id(optimizer))
            refuse_two(compressor, optimizer)

    return register_optimizer_step_pre_hook(look).remove
