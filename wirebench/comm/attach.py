"""Join a job that has begun without the suite: its ranks, with a process group of our own beside its own.

The exchange runs in a thread of its own, beside whatever the user's loop sends (DDP's buffers, a metric's sum). Two
threads that used one group would start their calls in different orders on different ranks.
"""

import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from wirebench.comm.engine import Engine, horovod_engine
from wirebench.comm.launch import Launch
from wirebench.comm.metered import Metered
from wirebench.comm.peers import introduce
from wirebench.comm.torchdist import TorchCommunicator
from wirebench.config.sections import EngineConfig
from wirebench.errors import UserError

HOW = "torch.distributed.init_process_group() or horovod.torch.init()"


def attach(device: torch.device, timeout_seconds: float = 60.0) -> Engine:
    """The engine of the job that this process is part of; every rank calls it, at the same place of its program.

    device           where the model's gradients are
    timeout_seconds  after this long without an answer a peer counts as lost
    Horovod counts where it is initialised, torch.distributed else. Raises UserError where neither is.
    """
    hvd = sys.modules.get("horovod.torch")
    if hvd is not None and hvd.is_initialized():
        return _of_horovod(hvd, device, timeout_seconds)
    if dist.is_available() and dist.is_initialized():
        return _of_torch(device, timeout_seconds)
    raise UserError(f"synchronise: this process is part of no job yet; call {HOW} first")


def _of_torch(device: torch.device, timeout_seconds: float) -> Engine:
    group, backend = _group(device, timeout_seconds)
    communicator = Metered(TorchCommunicator(staged=device.type == "cuda" and backend == "gloo", group=group))
    return Engine(
        "torch", dist.get_world_size(), (dist.get_rank(),), [communicator], device, torch.get_num_threads(),
        introduce(communicator), backend, closers=[lambda: dist.destroy_process_group(group)],
    )  # fmt: skip


def _of_horovod(hvd: Any, device: torch.device, timeout_seconds: float) -> Engine:
    sizes = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()
    launch = Launch("", ("horovod",), *sizes, sharing=hvd.local_size())
    section = EngineConfig(timeout_seconds=timeout_seconds)
    if not dist.is_initialized():
        return horovod_engine(hvd, section, launch, device)
    group, _ = _group(device, timeout_seconds)
    beside = TorchCommunicator(staged=device.type == "cuda", group=group)
    engine = horovod_engine(hvd, section, launch, device, beside)
    engine.closers.append(lambda: dist.destroy_process_group(group))
    return engine


def _group(device: torch.device, timeout_seconds: float) -> tuple[dist.ProcessGroup, str]:
    """A group of all ranks for us alone, and what moves its gradients: nccl or gloo."""
    nccl = device.type == "cuda" and "nccl" in dist.get_backend()
    # Lengths and names travel as tensors of the host.
    backends = "cpu:gloo,cuda:nccl" if nccl else "gloo"
    group: Any = dist.new_group(timeout=timedelta(seconds=timeout_seconds), backend=backends)
    if nccl:
        # NCCL wants every rank in a group's first call, and the first round of a tree leaves some out.
        dist.all_reduce(torch.zeros(1, device=device), group=group)
    return group, "nccl" if nccl else "gloo"
