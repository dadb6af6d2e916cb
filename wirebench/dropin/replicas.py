"""Facts that every rank of a job must share before the first step."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from wirebench.comm.engine import Engine
from wirebench.comm.peers import agree_on
from wirebench.config.plugins import check_type, options_of
from wirebench.dropin.shard_view import local
from wirebench.errors import UserError
from wirebench.gradient.conformance import name_of
from wirebench.gradient.flat import check_alike, is_channels_last


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that have a gradient, by name; UserError if none has one, or if their dtypes differ."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    check_alike(named)
    refuse_meta(named)
    sharded = next((name for name, p in named.items() if isinstance(p.data, DTensor)), None)
    if sharded is not None:
        raise UserError(
            f"model: {sharded} is sharded (a DTensor, as FSDP2 and tensor parallelism make them); averages are of "
            "whole gradients, as DDP has them"
        )
    return named


def refuse_meta(named: Mapping[str, Tensor]) -> None:
    """UserError for a parameter without data."""
    empty = next((name for name, each in named.items() if each.is_meta), None)
    if empty is not None:
        raise UserError(f"model: {empty} has no data (device meta); load or initialise the model before")


def make_alike(
    engine: Engine, maker: str, model: nn.Module, parts: Mapping[str, Any], refuse: Callable[[], None] = lambda: None
) -> None:
    """Give every rank rank 0's parameters, or shards, and buffers; UserError, on all ranks, where their parts differ.

    maker   as errors name it
    parts   as `parts_of` makes them, and what else has to be alike, by name
    refuse  raises UserError where what all ranks have alike does not fit together
    """
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    agree(engine, maker, {**parts, **tensors_of(parameters, "parameters"), **tensors_of(buffers, "buffers")})
    try:
        refuse()
    except UserError:
        engine.detach()
        raise
    engine.communicators[0].broadcast([*map(local, parameters.values()), *buffers.values()]).wait()


def agree(engine: Engine, maker: str, facts: Mapping[str, Any]) -> None:
    """UserError on every rank, which names rank and key, unless all ranks have the same facts; it ends the engine."""
    called = [peer.rank if peer.called is None else peer.called for peer in engine.peers]
    try:
        agree_on(engine.communicators[0], f"{maker}: the ranks' jobs differ", facts, called)
    except UserError:
        engine.detach()
        raise


def parts_of(scaler: torch.amp.GradScaler | None, seed: int, warmup_steps: int, **parts: object) -> dict[str, Any]:
    """The parts of an exchange and their options, by name: `compressor`, `compressor.density`."""
    for key, value in (("seed", seed), ("warmup_steps", warmup_steps)):
        check_type(key, value, int)
    if warmup_steps < 0:
        raise UserError(f"warmup_steps: needs 0 or more, got {warmup_steps}")
    facts: dict[str, Any] = {"seed": seed, "warmup_steps": warmup_steps}
    facts["scaler"] = "none" if scaler is None or not scaler.is_enabled() else "enabled"
    if scaler is not None and scaler.is_enabled():
        rule = scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval()
        facts |= {"scaler.scale": scaler.get_scale(), "scaler.rule": list(rule)}
    for kind, part in parts.items():
        facts |= _facts(kind, part)
    return facts


def tensors_of(named: Mapping[str, Tensor], kind: str) -> dict[str, Any]:
    """How many there are of this kind, and what each is: place, shape, dtype, device, format, whether it learns."""
    return {f"model's number of {kind}": len(named)} | {
        f"model.{name}": f"{kind[:-1]} {place}, {list(each.shape)}, {str(each.dtype).removeprefix('torch.')}, "
        f"{each.device.type}{', channels_last' * is_channels_last(each)}{', learns' * each.requires_grad}"
        for place, (name, each) in enumerate(named.items())
    }


def _facts(kind: str, part: object) -> dict[str, Any]:
    facts: dict[str, Any] = {kind: _name(part)}
    for key, value in options_of(part).items():
        facts |= _facts(f"{kind}.{key}", value) if hasattr(value, "wire_bytes") else {f"{kind}.{key}": _plain(value)}
    return facts


def _name(part: Any) -> str:
    """A compressor's as messages have it; of other parts, the module that holds the plugin."""
    return name_of(part) if hasattr(part, "wire_bytes") else type(part).__module__


def _plain(value: object) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return _name(value)  # a part of its own: its address would differ between ranks
