"""A rank of a small job that wirebench.watch records: KIND (ddp, fsdp, horovod, plain), FAULT, FOLDER."""

import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

import wirebench

PAUSE, PACE, HEALTHY_PACE = 0.3, 0.2, 0.3
"""Seconds of a fault, and of the forward pass, which waits instead of computing: the machine may be busy.

In a healthy job messages must not matter, however late a busy machine sends them.
"""
BATCH, WIDTH, CLASSES, STEPS = 64, 256, 10, 8


class Samples(Dataset[tuple[Tensor, int]]):
    """Noise; the slow ones take PAUSE a batch."""

    def __init__(self, width: int, batch: int, slow: bool) -> None:
        self.width, self.batch, self.slow = width, batch, slow

    def __len__(self) -> int:
        return self.batch * (STEPS + 4)

    def __getitems__(self, places: list[int]) -> list[tuple[Tensor, int]]:
        if self.slow:
            time.sleep(PAUSE)
        rows = torch.ones(len(places), self.width)
        return [(row, place % CLASSES) for row, place in zip(rows, places, strict=True)]


class Paced(torch.autograd.Function):
    """Waits in both passes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float, back: float) -> Tensor:
        time.sleep(seconds)
        ctx.back = back
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.back)
        return gradient, None, None


class Wait(nn.Module):
    """Paces the passes; last in the model, it is over before any gradient is there."""

    def __init__(self, seconds: float, back: float) -> None:
        super().__init__()
        self.seconds, self.back = seconds, back

    def forward(self, values: Tensor) -> Tensor:
        return Paced.apply(values, self.seconds, self.back)


def made(fault: str, rank: int) -> tuple[nn.Sequential, int, int]:
    """The model, its input's width and the batch."""
    if fault == "huge":
        return nn.Sequential(nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, CLASSES)), 4096, 4
    if fault == "tiny":
        deep = [layer for place in range(60) for layer in (nn.Linear(24, 24, bias=place % 2 == 0), nn.ReLU())]
        return nn.Sequential(nn.Linear(64, 24), *deep, nn.Linear(24, 2048), nn.Linear(2048, CLASSES)), 64, 8
    more = PAUSE if fault == "slow rank" and rank == 1 else 0.0
    wide = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    pace = HEALTHY_PACE if fault == "none" else PACE
    return nn.Sequential(*wide, nn.Linear(WIDTH, CLASSES), Wait(pace + more, 2 * pace)), WIDTH, BATCH


def distributed(kind: str, fault: str, layers: nn.Sequential) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer as the framework has them."""
    model: nn.Module = layers
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for each in layers:
            if isinstance(each, nn.Linear):
                fully_shard(each)
        fully_shard(layers)
    elif kind in ("ddp", "plain"):
        model = DistributedDataParallel(layers, bucket_cap_mb=0.001 if fault == "tiny" else 25)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if kind == "horovod":
        import horovod.torch as hvd

        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    return model, optimizer


def main(kind: str, fault: str, folder: str) -> None:
    """Train and record."""
    if kind == "horovod":
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()
    else:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
    torch.manual_seed(0)
    layers, width, batch = made(fault, rank)
    model, optimizer = distributed(kind, fault, layers)
    loader = DataLoader(Samples(width, batch, fault == "data"), batch_size=batch)

    def step(values: Tensor, labels: Tensor) -> None:
        if fault == "late rank" and rank == 1:
            time.sleep(PAUSE)
        optimizer.zero_grad()
        cross_entropy(model(values), labels).backward()
        optimizer.step()

    if kind == "plain":
        plan = schedule(wait=0, warmup=3, active=STEPS, repeat=1)
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"rank{rank}.json")
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, schedule=plan,
                     on_trace_ready=lambda done: done.export_chrome_trace(path)) as profiler:  # fmt: skip
            for values, labels in loader:
                step(values, labels)
                profiler.step()
    elif kind == "fsdp":
        for values, labels in wirebench.watch(loader, steps=STEPS - 1, folder=folder):
            step(values, labels)
    else:
        with wirebench.watch(steps=STEPS - 1, folder=folder):
            for values, labels in loader:
                step(values, labels)
    if kind != "horovod":
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
