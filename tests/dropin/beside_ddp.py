"""What `test_synchronise.py` runs on every rank: two loops over the same batches, the engine's own and `synchronise`.

Arguments: torch (DistributedDataParallel) or horovod (hvd.DistributedOptimizer), and cases, as
OPTIMIZER[+accumulate][+clip][+scaler][+unused]. Rank 0 prints the largest difference of any parameter after 50 steps,
a line a case.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import wirebench
from wirebench import compressors, schedulers
from wirebench.comm.launch import end_process

STEPS, CLIP = 50, 0.5
RANK = 0
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-3),
}


class Net(nn.Module):
    """Two hidden layers; `tied` is used twice, `frozen` never learns, `unused` takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tied, self.last = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 5)
        self.norm, self.unused, self.frozen = nn.BatchNorm1d(32), nn.Linear(3, 3), nn.Parameter(torch.ones(32))
        self.frozen.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.tied(torch.relu(self.norm(self.first(x)) * self.frozen)))
        return self.last(torch.relu(self.tied(hidden)))


def batches(rank: int) -> list[tuple[Tensor, Tensor]]:
    rng = torch.Generator().manual_seed(100 + rank)
    inputs = torch.randn(STEPS, 2, 8, 20, generator=rng)
    return [(x, x[..., :5].argmax(-1)) for x in inputs]


class Ours:
    """`synchronise`, as the loop below drives it."""

    def __init__(self, model: nn.Module, words: set[str], scaler: torch.amp.GradScaler | None) -> None:
        self.optimizer = optimizer_of(model, words)
        self.module, self.scaler, self.clips = model, scaler, "clip" in words
        self.sync = wirebench.synchronise(model, compressors.build("none"), schedulers.build("wfbp"), scaler=scaler)

    def no_sync(self) -> AbstractContextManager[None]:
        return self.sync.no_sync()

    def update(self) -> None:
        if not self.clips:
            return self.sync.step(self.optimizer, self.scaler)
        self.sync.wait()
        return clip_and_step(self)


class Ddp:
    """DistributedDataParallel."""

    def __init__(self, model: nn.Module, words: set[str], scaler: torch.amp.GradScaler | None) -> None:
        self.optimizer = optimizer_of(model, words)
        self.scaler, self.clips = scaler, "clip" in words
        self.module: Any = DistributedDataParallel(
            model, broadcast_buffers=False, find_unused_parameters="unused" in words
        )

    def no_sync(self) -> AbstractContextManager[None]:
        return self.module.no_sync()

    def update(self) -> None:
        clip_and_step(self)


class Horovod:
    """hvd.DistributedOptimizer, which counts the passes itself."""

    def __init__(self, model: nn.Module, words: set[str], scaler: torch.amp.GradScaler | None) -> None:
        self.module, self.scaler, self.clips = model, scaler, "clip" in words
        learning = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self.optimizer = hvd.DistributedOptimizer(
            optimizer_of(model, words), learning, backward_passes_per_step=passes(words)
        )

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def update(self) -> None:
        self.optimizer.synchronize()
        with self.optimizer.skip_synchronize():
            clip_and_step(self)


def optimizer_of(model: nn.Module, words: set[str]) -> torch.optim.Optimizer:
    return OPTIMIZERS[min(words & OPTIMIZERS.keys())]([p for p in model.parameters() if p.requires_grad])


def passes(words: set[str]) -> int:
    return 2 if "accumulate" in words else 1


def clip_and_step(side: Any) -> None:
    if side.clips:
        if side.scaler:
            side.scaler.unscale_(side.optimizer)
        nn.utils.clip_grad_norm_(side.module.parameters(), CLIP)
    side.scaler.step(side.optimizer) if side.scaler else side.optimizer.step()


def train(words: set[str], kind: Callable[..., Any], seed: int) -> dict[str, Tensor]:
    """The parameters after 50 steps."""
    torch.manual_seed(seed)
    model = Net()
    if "unused" not in words:
        del model.unused
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=10) if "scaler" in words else None
    side, parts = kind(model, words, scaler), passes(words)
    schedule = torch.optim.lr_scheduler.StepLR(side.optimizer, 20, 0.5)
    for inputs, labels in batches(RANK):
        side.optimizer.zero_grad()
        for part in range(parts):
            with side.no_sync() if part < parts - 1 else nullcontext():
                loss = nn.functional.cross_entropy(side.module(inputs[part]), labels[part]) / parts
                (scaler.scale(loss) if scaler else loss).backward()
        side.update()
        if scaler:
            scaler.update()
        schedule.step()
    if isinstance(side, Ours):
        side.sync.close()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def main() -> None:
    for case in sys.argv[2:]:
        words = set(case.split("+"))
        theirs = train(words, PEER, seed=0)
        mine = train(words, Ours, seed=RANK)  # `synchronise` gives every rank rank 0's model
        torch.manual_seed(0)
        start = dict(Net().named_parameters())
        moved = max(float((p - start[name]).abs().max()) for name, p in theirs.items())
        worst = max(float((theirs[name] - mine[name]).abs().max()) for name in theirs)
        assert moved > 1e-3, "nothing was learned"
        if RANK == 0:
            print(f"{case} {worst:.3e}", flush=True)


if __name__ == "__main__":
    PEER: Any = Ddp
    if sys.argv[1] == "torch":
        dist.init_process_group("gloo")
        RANK = dist.get_rank()
    else:
        import horovod.torch as hvd

        hvd.init()
        PEER, RANK = Horovod, hvd.rank()
    main()
    end_process(0)
