"""A communication hook for DistributedDataParallel: any compressor of the suite on PyTorch's own buckets.

  ddp.register_comm_hook(None, wirebench.comm_hook(compressors.build("topk", density=0.01)))

DDP cuts its buckets anew in one of the first steps, by the order in which gradients came. A compressor's residual is
kept by place, so the first two or three steps are exchanged dense (DdpBuckets), as PowerSGD's own hook does until
`start_powerSGD_iter`.
"""

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from wirebench.collectives.plan import Collective
from wirebench.comm.attach import Group
from wirebench.dropin import optimizer_watch
from wirebench.dropin.at_exit import close_at_exit
from wirebench.dropin.ddp_buckets import ddp_of
from wirebench.dropin.hook_job import HookJob
from wirebench.dropin.replicas import parts_of, tensors_of
from wirebench.dropin.usage import mark_state, method_and_collective, refuse_names, refuse_state, refuse_used, use
from wirebench.errors import UserError
from wirebench.gradient.contract import Compressor, Method

_NO_BUCKET: Any = None
"""FSDP calls a hook with other arguments."""


def comm_hook(
    compressor: Compressor,
    collective: str | Collective = "",
    *,
    scaler: torch.amp.GradScaler | None = None,
    seed: int = 0,
    warmup_steps: int = 10,
    timeout_seconds: float = 60.0,
    process_group: Group = None,
) -> "CommHook":
    """A hook for `DistributedDataParallel.register_comm_hook`, with None or a process group as its state.

    compressor  compressors.build(...), or any object with a Compressor's members; one for each model
    collective  a name, collectives.build(...), or "" for the one of the compressor's paper, else the engine's own
    scaler      the GradScaler that the loop or its trainer scales the loss with
    seed        of the draws that all ranks share
    warmup_steps     first steps, which `report` leaves out
    timeout_seconds  after this long without an answer another rank counts as lost
    process_group    averages are over its ranks; None: the state if that is a group, else the model's own group
    Raises UserError for parts that are of another kind. Errors of an exchange end the backward pass with their own
    types: UserError, or PeerLost, which names the rank that is gone.
    """
    refuse_names(compressor=compressor)
    method, collective = method_and_collective(compressor, collective, scaler)
    facts = parts_of(scaler, seed, warmup_steps, compressor=compressor, collective=collective)
    job = partial(HookJob, method, collective, scaler, seed, warmup_steps, timeout_seconds)
    return CommHook(method, scaler, process_group, job, facts)


class CommHook:
    """One model's exchange by DDP's buckets; `comm_hook` makes one.

    group     process group to average over; None: the model's own group, which the first bucket shows
    make_job  called with the facts that all ranks must share, the gradients' device, the group and the state to resume
    facts     facts that all ranks must share, by name, without facts about the model
    epoch     set it if the loop has epochs: a compressor's warm-up counts them
    An exchange runs in a thread of its own, in the order of the buckets, and its future is completed there.
    """

    def __init__(
        self,
        compressor: Method,
        scaler: torch.amp.GradScaler | None,
        group: Group,
        make_job: Callable[[Mapping[str, Any], torch.device, Group, Mapping[str, Any]], HookJob],
        facts: Mapping[str, Any],
    ) -> None:
        self.compressor, self.epoch = compressor, 0
        self._group, self._make_job, self._facts = group, make_job, facts
        self._job: HookJob | None = None
        self._closed = False
        self._ddp: Callable[[], Any] = lambda: None
        self._state: Mapping[str, Any] = {}
        # DDP asks a hook for the names of a function.
        self.__name__ = self.__qualname__ = "wirebench_comm_hook"
        self._leave: Callable[[], object] = lambda: None
        self._unwatch = optimizer_watch.watch(compressor, scaler, lambda: self._job.parameters if self._job else ())
        close_at_exit(self)

    def __call__(self, state: object, bucket: dist.GradBucket = _NO_BUCKET, *shards: object) -> Future[Tensor]:
        """Start the exchange of a bucket; the future's value is the average over ranks."""
        if not isinstance(bucket, dist.GradBucket):
            raise _not_of_ddp(bucket)
        try:
            future = self._start(state, bucket)
        except Exception as error:
            # DDP gets its bucket without averaging, and ends the backward pass in order; else each later one would end
            # in an internal error of PyTorch's.
            buffer = bucket.buffer()
            future = Future(devices=[buffer.device] if buffer.is_cuda else None)
            future.set_result(buffer)
            after_backward(partial(_throw, error))
        return future

    def _start(self, state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        if self._closed:
            raise UserError("comm_hook: it is closed, and DDP still calls it; make the DDP model and its hook anew")
        if self._job is None:
            self._job = self._begin(state, bucket)
            self._leave = use(self.compressor, self)
        if self._job.failed is not None:
            raise self._job.failed
        ddp = self._ddp()
        if ddp is not None and ddp._join_config.enable and not ddp._divide_by_initial_world_size:
            raise UserError(
                "comm_hook: averages over all ranks of the group, with or without inputs left; take join() with "
                "divide_by_initial_world_size=True"
            )
        future = self._job.start(bucket, self.epoch)
        if bucket.is_last():
            after_backward(self._job.check)
        return future

    def _begin(self, state: object, bucket: dist.GradBucket) -> HookJob:
        """The job of the model that this bucket is of: its group, and what all ranks must have alike."""
        refuse_used(self.compressor)
        group, ddp = self._group, ddp_of(bucket, self)
        if isinstance(state, dist.ProcessGroup):
            if group is not None and group is not state:
                raise UserError(
                    "comm_hook: process_group= is one group, and register_comm_hook has another as its state"
                )
            group = state
        if group is None and ddp is None:
            raise UserError("comm_hook: cannot find the model's process group; pass it: comm_hook(process_group=)")
        if group is None and ddp is not None:
            group = ddp.process_group
        if ddp is not None:
            self._ddp = weakref.ref(ddp)
        named = dict(enumerate(bucket.parameters())) if ddp is None else dict(ddp.module.named_parameters())
        facts = {**self._facts, **tensors_of({str(name): each for name, each in named.items()}, "parameters")}
        return self._make_job(facts, bucket.buffer().device, group, self._state)

    def allocate(self, *_: object, **__: object) -> Tensor:
        """Refuse FSDP2, which calls this first on a custom all-gather or reduce-scatter."""
        raise _not_of_ddp(None)

    def report(self) -> dict[str, Any]:
        """This rank's numbers, as in a record, of the steps so far: bytes, ratios, requests, the compressor's seconds.

        Only DDP knows which part of an exchange the backward pass has hidden: phases other than `compress` are None.
        """
        if self._job is None:
            raise UserError("comm_hook: no step is done yet")
        return self._job.report()

    def state_dict(self) -> dict[str, Any]:
        """What this rank needs to resume after a restart; each rank saves its own, since residuals differ."""
        if self._job is None:
            raise UserError("comm_hook.state_dict: no step is done yet")
        return {**mark_state("comm_hook", self.compressor), "epoch": self.epoch, **self._job.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from what `state_dict` returned; before the first step. The dense steps come first again."""
        if self._job is not None:
            raise UserError("comm_hook.load_state_dict: comes before the first step")
        refuse_state(state, "comm_hook", self.compressor)
        self.epoch, self._state = state["epoch"], state

    def close(self) -> None:
        """End the thread and leave the suite's own process group; a later backward pass of the model is refused."""
        if self._closed:
            return
        self._closed = True
        self._unwatch()
        self._leave()
        if self._job is not None:
            self._job.close()


def after_backward(check: Callable[[], None]) -> None:
    """Call it when DDP has finished the backward pass that runs, which then ends with its error, whose type stays."""
    if torch._C._current_graph_task_id() < 0:  # within DDP's join(), for a rank without inputs
        return check()
    queue = torch.autograd.Variable._execution_engine.queue_callback
    # A callback that is queued by a callback comes after all others, DDP's among them.
    queue(partial(queue, check))


def _throw(error: Exception) -> None:
    raise error


def _not_of_ddp(given: object) -> UserError:
    if isinstance(given, tuple):
        return UserError(
            "comm_hook: needs DDP's buckets, and DDP's Python reducer (torch._dynamo.config.optimize_ddp = "
            "'python_reducer') makes none"
        )
    return UserError(
        "comm_hook: is for DistributedDataParallel. Between replicas of a model under FSDP2 take "
        'wirebench.compress_replicas(model, compressor, mesh["replicate"]); FSDP1 has no such hook'
    )
