"""Join a job that has begun without the suite: all its ranks or a group of them, with a process group of our own.

The exchange runs in a thread of its own, beside whatever the user's loop sends (DDP's buffers, a metric's sum). Two
threads that used one group would start their calls in different orders on different ranks.
"""

import sys
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from wirebench.comm.engine import Engine, horovod_engine
from wirebench.comm.launch import Launch
from wirebench.comm.metered import Metered
from wirebench.comm.peers import agree_on, introduce, missing, reporting_loss
from wirebench.comm.torchdist import TorchCommunicator
from wirebench.config.plugins import check_type
from wirebench.config.sections import EngineConfig
from wirebench.errors import UserError

Group = dist.ProcessGroup | None
MOST_SECONDS = 1e9
HOW = "torch.distributed.init_process_group() or horovod.torch.init()"
_made: Counter[str] = Counter()
"""How many groups of ours each group of the user's has had, by its name: the same on all of its ranks."""


def attach(device: torch.device, timeout_seconds: float = 60.0, group: Group = None) -> Engine:
    """The engine of the job that this process is part of; every rank calls it, at the same place of its program.

    device           where the model's gradients are
    timeout_seconds  after this long without an answer a peer counts as lost
    group            its ranks alone are the engine's, and they alone call it; None: all ranks
    Horovod counts where it is initialised, torch.distributed else. Raises UserError where neither is, for a group under
    Horovod, and on a rank outside the group.
    """
    check_type("timeout_seconds", timeout_seconds, float)
    if not 0 < timeout_seconds <= MOST_SECONDS:
        raise UserError(f"timeout_seconds: needs more than 0 and at most {MOST_SECONDS:g}, got {timeout_seconds:g}")
    hvd = sys.modules.get("horovod.torch")
    if hvd is not None and hvd.is_initialized():
        if group is not None and len(_ranks(group)) != hvd.size():
            raise UserError("process_group: Horovod averages over all of its ranks; leave it out")
        return _of_horovod(hvd, device, timeout_seconds)
    if dist.is_available() and dist.is_initialized():
        return _of_torch(device, timeout_seconds, group)
    raise UserError(f"synchronise: this process is part of no job yet; call {HOW} first")


def _of_torch(device: torch.device, timeout_seconds: float, given: Group) -> Engine:
    ranks = _ranks(given)
    group, backend = _group(device, timeout_seconds, None if ranks == list(range(dist.get_world_size())) else given)
    inner = TorchCommunicator(staged=device.type == "cuda" and backend == "gloo", group=group)
    communicator = Metered(inner)
    met = introduce(communicator)
    peers = [replace(peer, called=called) for peer, called in zip(met, ranks, strict=True)]
    agree_on(communicator, "the ranks' models differ", {"device": device.type}, ranks)
    if backend == "nccl":
        _call_first(device, group)
    c10d: Any = dist.distributed_c10d
    store = dist.PrefixStore(f"wirebench/{c10d._get_process_group_name(group)}", c10d._get_default_store())
    communicator.who_is_gone = lambda: ", ".join(map(str, missing(peers, communicator.rank, store)))
    return Engine(
        "torch", communicator.size, (communicator.rank,), [communicator], device, torch.get_num_threads(),
        peers, backend, closers=[inner.leave],
    )  # fmt: skip


def _ranks(group: Group) -> list[int]:
    """The numbers in the job of the group's ranks, in the group's order; UserError where this one is not among them."""
    outside: bool = group is dist.GroupMember.NON_GROUP_MEMBER  # type: ignore[comparison-overlap]
    if group is not None and not outside and not isinstance(group, dist.ProcessGroup):
        raise UserError(f"process_group: must be a torch.distributed.ProcessGroup, not a {type(group).__name__}")
    if outside or dist.get_rank(group) < 0:
        raise UserError(f"process_group: rank {dist.get_rank()} is not in it; the ranks in a group alone take part")
    return dist.get_process_group_ranks(group)


def _of_horovod(hvd: Any, device: torch.device, timeout_seconds: float) -> Engine:
    sizes = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()
    launch = Launch("", ("horovod",), *sizes, sharing=hvd.local_size())
    section = EngineConfig(timeout_seconds=timeout_seconds)
    if not dist.is_initialized():
        return horovod_engine(hvd, section, launch, device)
    group, backend = _group(device, timeout_seconds, None)
    if backend == "nccl":
        _call_first(device, group)
    beside = TorchCommunicator(staged=device.type == "cuda", group=group)
    engine = horovod_engine(hvd, section, launch, device, beside)
    engine.closers.append(beside.leave)
    return engine


def _group(device: torch.device, timeout_seconds: float, parent: Group) -> tuple[dist.ProcessGroup, str]:
    """A group for us alone, and what moves its gradients: nccl or gloo.

    parent  has the same ranks; None: all of the job's
    """
    nccl = device.type == "cuda" and "nccl" in dist.get_backend(parent)
    # Lengths and names travel as tensors of the host.
    backends, timeout = "cpu:gloo,cuda:nccl" if nccl else "gloo", timedelta(seconds=timeout_seconds)
    with reporting_loss():
        if parent is not None:
            group: Any = _beside(parent, backends, timeout)
        else:
            group = dist.new_group(timeout=timeout, backend=backends)
    return group, "nccl" if nccl else "gloo"


def _call_first(device: torch.device, group: dist.ProcessGroup) -> None:
    """NCCL wants every rank in a group's first call, and the first round of a tree leaves some out."""
    dist.all_reduce(torch.zeros(1, device=device), group=group)


def _beside(parent: dist.ProcessGroup, backends: str, timeout: timedelta) -> dist.ProcessGroup:
    """A group with the ranks of `parent`, which its ranks alone make.

    `new_group` is for all ranks of a job. With use_local_synchronization its groups' names depend on how many groups a
    process has made, and so may differ between ranks; and it moves that count on for some ranks only, so that the
    user's next group would have different names on different ranks.
    """
    c10d: Any = dist.distributed_c10d
    default, ranks = c10d._get_default_group(), dist.get_process_group_ranks(parent)
    _made[parent.group_name] += 1
    name = f"wirebench/{parent.group_name}/{_made[parent.group_name]}"
    # A single rank meets no other, and the process that keeps the job's store may have ended.
    store = dist.HashStore() if len(ranks) == 1 else c10d._get_default_store()
    # Where the default group is bound to a device, NCCL would split it, for which it wants all of its ranks.
    bound, default.bound_device_id = default.bound_device_id, None
    try:
        made = c10d._new_process_group_helper(
            len(ranks),
            dist.get_rank(parent),
            ranks,
            dist.Backend(backends),
            store,
            name,
            timeout=timeout,
        )
    finally:
        default.bound_device_id = bound
    group: dist.ProcessGroup = made[0]
    c10d._world.pg_group_ranks[group] = {rank: place for place, rank in enumerate(ranks)}
    return group
