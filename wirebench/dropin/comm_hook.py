"""A communication hook for DistributedDataParallel: any compressor of the suite on PyTorch's own buckets.

  ddp.register_comm_hook(None, wirebench.comm_hook(compressors.build("topk", density=0.01)))

DDP cuts its buckets anew after the first backward pass, by the order in which gradients came. A compressor's residual
is kept by place, so the first two steps are exchanged dense, as PowerSGD's own hook does until `start_powerSGD_iter`;
the second one shows the buckets that stay.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from wirebench import collectives
from wirebench.collectives.plan import Collective
from wirebench.dropin import optimizer_watch
from wirebench.dropin.hook_job import HookJob
from wirebench.dropin.usage import mark_state, refuse_kinds, refuse_names, refuse_state
from wirebench.errors import UserError
from wirebench.gradient import conformance
from wirebench.gradient.contract import Compressor, Method

_NO_BUCKET: Any = None
"""FSDP2 calls a hook with one tensor."""


def comm_hook(
    compressor: Compressor,
    collective: str | Collective = "",
    *,
    scaler: torch.amp.GradScaler | None = None,
    seed: int = 0,
    warmup_steps: int = 10,
    timeout_seconds: float = 60.0,
) -> "CommHook":
    """What `DistributedDataParallel.register_comm_hook` takes, with None as its state.

    compressor  compressors.build(...), or any object with a Compressor's members; one for each model
    collective  a name, collectives.build(...), or "" for the one of the compressor's paper, else the engine's own
    scaler      the GradScaler that the loop or its trainer scales the loss with
    seed        of the draws that all ranks share
    warmup_steps     first steps, which `report` leaves out
    timeout_seconds  after this long without an answer another rank counts as lost
    """
    refuse_names(compressor=compressor)
    refuse_kinds(scaler, collective)
    method = conformance.method_of(compressor)
    if isinstance(collective, str):
        collective = collectives.build(collective or method.collective or "native")
    job = partial(HookJob, method, collective, scaler, seed, warmup_steps, timeout_seconds)
    return CommHook(method, scaler, job)


class CommHook:
    """One model's exchange by DDP's buckets; `comm_hook` makes one.

    make_job  of the gradients' device and the state to go on from, when the first bucket is there
    epoch  set it where the loop has epochs: a compressor's warm-up goes by them
    An exchange runs in a thread of its own, in the order of the buckets, and its future is completed there.
    """

    def __init__(
        self,
        compressor: Method,
        scaler: torch.amp.GradScaler | None,
        make_job: Callable[[torch.device, Mapping[str, Any]], HookJob],
    ) -> None:
        self.compressor, self.epoch = compressor, 0
        self._make_job = make_job
        self._job: HookJob | None = None
        self._state: Mapping[str, Any] = {}
        # DDP asks a hook for the names of a function.
        self.__name__ = self.__qualname__ = "wirebench_comm_hook"
        self._unwatch = optimizer_watch.watch(compressor, scaler, lambda: self._job.parameters if self._job else ())

    def __call__(self, state: object, bucket: dist.GradBucket = _NO_BUCKET, *shards: object) -> Future[Tensor]:
        """Start the exchange of a bucket; the future's value is the average over ranks."""
        if not isinstance(bucket, dist.GradBucket):
            raise _of_fsdp()
        if self._job is None:
            self._job = self._make_job(bucket.buffer().device, self._state)
        return self._job.start(bucket, self.epoch)

    def allocate(self, *_: object, **__: object) -> Tensor:
        """What FSDP2 calls first of a custom all-gather or reduce-scatter: refused."""
        raise _of_fsdp()

    def report(self) -> dict[str, Any]:
        """What a record says of the steps so far: bytes, ratios, requests, seconds of the compressor; of this rank.

        Which part of an exchange the backward pass has hidden only DDP knows: phases but `compress` are None.
        """
        if self._job is None:
            raise UserError("comm_hook: no step is done yet")
        return self._job.report()

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to go on after a restart; each rank saves its own, since residuals differ."""
        if self._job is None:
            raise UserError("comm_hook.state_dict: no step is done yet")
        return {**mark_state("comm_hook", self.compressor), "epoch": self.epoch, **self._job.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` returned; before the first step. Two dense steps come first again."""
        if self._job is not None:
            raise UserError("comm_hook.load_state_dict: comes before the first step")
        refuse_state(state, "comm_hook", self.compressor)
        self.epoch, self._state = state["epoch"], state

    def close(self) -> None:
        """End the thread and leave the suite's own process group; DDP must not call the hook again."""
        self._unwatch()
        if self._job is not None:
            self._job.close()


def _of_fsdp() -> UserError:
    return UserError(
        "comm_hook: is for DistributedDataParallel. FSDP gives its hooks no buckets, and each rank needs a shard of "
        "the average, where a compressor's is whole on every rank"
    )
