"""The engines' own gradient synchronisers, driven as ours are: the baselines that every result is compared with."""

import inspect
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from wirebench.collectives.execution.executor import RequestLog
from wirebench.comm.base import ring_reduce_bytes
from wirebench.comm.engine import Engine
from wirebench.errors import UserError
from wirebench.exchange.driver import Driver, Parts, Workers
from wirebench.gradient.conformance import DENSE, name_of

# The name since torch 2.15; the one before still works there but warns.
_NAMES = inspect.signature(DistributedDataParallel).parameters
_KEEP_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _NAMES else "broadcast_buffers"
_CAPS = "bucket_cap_mb_list"
OWN_CAPS = "scheduler.bucket_caps_mb"


class EnginesOwn(Driver):
    """An engine's synchroniser.

    module     the model as the train loop calls it; optimizer: as the loop steps it
    served     a step's bytes, by the formula of a ring
    """

    messages: ClassVar[bool] = False
    module: nn.Module
    optimizer: Any

    def __init__(self, plan: str, model: nn.Module, size: int) -> None:
        super().__init__([])
        self.served = _served(plan, model, size)

    @classmethod
    def accepts(cls, parts: Parts) -> str | None:
        """It is dense, has its own collective, and hides its exchanges from watchers."""
        if parts.own_loop:
            return "is DistributedDataParallel or hvd.DistributedOptimizer itself"
        if (name := name_of(parts.compressor)) != DENSE or parts.has_plan:
            collective = type(parts.collective).__module__.rpartition(".")[2]
            return (
                f"is the engine's own synchroniser, dense and with its own collective: it goes with compressor {DENSE} "
                f"and collective {cls.collective}, not {name} and {collective}"
            )
        if parts.health_every:
            return "is the engine's own synchroniser, with nothing to look into; set output.health_every=0"
        return super().accepts(parts)

    @classmethod
    def make(cls, workers: Workers, scheduler: Any) -> Driver:
        """The synchroniser of the engine, around the one model of this process."""
        return builtin_sync(
            workers.engine, workers.models[0], workers.optimizers[0], bucket_cap_mb=scheduler.bucket_cap_mb,
            bucket_caps_mb=scheduler.bucket_caps_mb, accumulation=workers.accumulation, unused=workers.unused,
        )  # fmt: skip

    @classmethod
    def fusion_mb(cls, scheduler: Any) -> float | None:
        """Its own threshold, or the engine's default."""
        return scheduler.bucket_cap_mb or None

    def take_logs(self) -> list[list[RequestLog]]:
        """One step's bytes."""
        return [[self.served]]


class DdpSync(EnginesOwn):
    """torch.nn.parallel.DistributedDataParallel; `module` is what the train loop calls.

    bucket_cap_mb  DDP's bucket size in MiB; 0: its default (25, the first bucket 1)
    bucket_caps_mb the size of each bucket instead, in the order in which gradients come; empty: bucket_cap_mb counts.
                   UserError where this torch has no such argument, or with `find_unused`. DDP knows that order after
                   its first step: the buckets of that step begin at the model's other end
    find_unused    some parameters take no part in the loss
    Buffers of the model (statistics of normalisation) stay each rank's own, as they do with our schedulers.
    """

    module: DistributedDataParallel

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        device: torch.device,
        bucket_cap_mb: float,
        find_unused: bool,
        bucket_caps_mb: Sequence[float] = (),
    ) -> None:
        super().__init__("DistributedDataParallel", model, dist.get_world_size())
        self.optimizer = optimizer
        options: dict[str, Any] = {
            "device_ids": [device] if device.type == "cuda" else None,
            "bucket_cap_mb": bucket_cap_mb or None,
            "find_unused_parameters": find_unused,
            _KEEP_BUFFERS: False,
        }
        if bucket_caps_mb:
            if _CAPS not in _NAMES:
                raise UserError(f"{OWN_CAPS}: DDP takes {_CAPS} from torch 2.15 on, and this is {torch.__version__}")
            if find_unused:  # then DDP never cuts its buckets anew
                raise UserError(f"{OWN_CAPS}: needs a model all of whose parameters take part in the loss")
            options[_CAPS] = list(bucket_caps_mb)
        self.module = DistributedDataParallel(model, **options)

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before; accumulate without synchronising."""
        for parameter in self.module.parameters():
            parameter.grad = None
        self.module.require_backward_grad_sync = False

    def enable_sync(self) -> None:
        """Synchronise in the backward pass that comes."""
        self.module.require_backward_grad_sync = True

    def finish(self) -> None:
        """DDP has already waited, at the end of the backward pass."""


class HorovodSync(EnginesOwn):
    """hvd.DistributedOptimizer; `optimizer` is what the train loop steps."""

    def __init__(self, hvd: Any, model: nn.Module, optimizer: Optimizer, accumulation: int) -> None:
        super().__init__("hvd.DistributedOptimizer", model, hvd.size())
        self.module = model
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, model.named_parameters(), op=hvd.Average, backward_passes_per_step=accumulation
        )

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before."""
        self.optimizer.zero_grad()

    def enable_sync(self) -> None:
        """Horovod counts the backward passes itself."""

    def finish(self) -> None:
        """Wait for the all-reduces."""
        self.optimizer.synchronize()

    def stepping(self) -> AbstractContextManager[None]:
        """The gradients are synchronised already."""
        return self.optimizer.skip_synchronize()


def builtin_sync(
    engine: Engine,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    bucket_cap_mb: float,
    accumulation: int,
    unused: Collection[str],
    bucket_caps_mb: Sequence[float] = (),
) -> DdpSync | HorovodSync:
    """The synchroniser that comes with the engine.

    UserError: the local engine has none, and caps of single buckets are the torch engine's.
    """
    if bucket_caps_mb and engine.name != "torch":
        raise UserError(f"{OWN_CAPS}: needs engine.name=torch, whose DDP takes {_CAPS}; the engine is {engine.name}")
    engine.uncounted = True
    if engine.name == "torch":
        return DdpSync(model, optimizer, engine.device, bucket_cap_mb, bool(unused), bucket_caps_mb)
    if engine.name == "horovod":
        return HorovodSync(engine.module, model, optimizer, accumulation)
    raise UserError("scheduler.name: 'builtin' needs an engine with a synchroniser of its own: torch or horovod")


def _served(plan: str, model: nn.Module, size: int) -> RequestLog:
    """A step's bytes by the formula of a ring, since the engine does not report its messages."""
    dense = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    return RequestLog("Sum", plan, 1, dense, dense, ring_reduce_bytes(dense, size), 0.0)
