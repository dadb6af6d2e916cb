"""What every rank of a job must have alike before the first step."""

from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor

from wirebench.collectives.plan import Collective
from wirebench.comm.engine import Engine
from wirebench.comm.peers import agree_on
from wirebench.errors import UserError
from wirebench.gradient.conformance import name_of
from wirebench.gradient.contract import Method, Scheduler
from wirebench.gradient.flat import check_alike


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that have a gradient, by name; UserError where there is none, or where their dtypes differ."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    check_alike(named)
    sharded = next((name for name, p in named.items() if isinstance(p.data, DTensor)), None)
    if sharded is not None:
        raise UserError(
            f"model: {sharded} is sharded (a DTensor, as FSDP2 and tensor parallelism make them); averages are of "
            "whole gradients, as DDP has them"
        )
    return named


def make_alike(
    engine: Engine, model: nn.Module, compressor: Method, scheduler: Scheduler, collective: Collective
) -> None:
    """Give every rank rank 0's parameters and buffers; UserError, on all ranks, where they brought different parts."""
    shapes = {f"model.{name}": list(p.shape) for name, p in trainable(model).items()}
    parts: dict[str, Any] = {"compressor": name_of(compressor)}
    parts |= {"scheduler": type(scheduler).__module__, "collective": type(collective).__module__}
    communicator = engine.communicators[0]
    agree_on(communicator, "synchronise: the ranks' jobs differ", shapes | parts)
    tensors = [p.detach() for p in model.parameters()] + list(model.buffers())
    communicator.broadcast(tensors).wait()
