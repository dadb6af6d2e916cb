"""What `test_synchronise.py` runs on every rank: two loops over the same batches, with DDP and with `synchronise`.

Arguments: cases, as OPTIMIZER[+accumulate][+clip][+scaler][+unused]. Rank 0 prints the largest difference of any
parameter after 50 steps, a line a case.
"""

import copy
import sys
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import compressors
import schedulers
import wirebench
from wirebench.comm.launch import end_process

STEPS, CLIP = 50, 0.5
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


def train(words: set[str], ours: bool) -> dict[str, Tensor]:
    """The parameters after 50 steps."""
    torch.manual_seed(dist.get_rank() if ours else 0)  # `synchronise` gives every rank rank 0's model
    model = Net() if not ours else copy.deepcopy(Net())
    if "unused" not in words:
        del model.unused
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=10) if "scaler" in words else None
    if ours:
        sync = wirebench.synchronise(model, compressors.build("none"), schedulers.build("wfbp"), scaler=scaler)
        module: Any = model
    else:
        module = DistributedDataParallel(model, broadcast_buffers=False, find_unused_parameters="unused" in words)
    optimizer = OPTIMIZERS[min(words & OPTIMIZERS.keys())]([p for p in model.parameters() if p.requires_grad])
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 20, 0.5)
    for inputs, labels in batches(dist.get_rank()):
        optimizer.zero_grad()
        parts = 2 if "accumulate" in words else 1
        for part in range(parts):
            waits = part < parts - 1
            quiet = (sync if ours else module).no_sync() if waits else nullcontext()
            with quiet:
                loss = nn.functional.cross_entropy(module(inputs[part]), labels[part]) / parts
                (scaler.scale(loss) if scaler else loss).backward()
        if ours and "clip" not in words:
            sync.step(optimizer, scaler)
        else:
            if ours:
                sync.wait()
            if scaler and "clip" in words:
                scaler.unscale_(optimizer)
            if "clip" in words:
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            scaler.step(optimizer) if scaler else optimizer.step()
        if scaler:
            scaler.update()
        schedule.step()
    if ours:
        sync.close()
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def main() -> None:
    dist.init_process_group("gloo")
    for case in sys.argv[1:]:
        words = set(case.split("+"))
        theirs, mine = train(words, ours=False), train(words, ours=True)
        moved = max(float((theirs[name] - p).abs().max()) for name, p in Net().state_dict().items() if name in theirs)
        worst = max(float((theirs[name] - mine[name]).abs().max()) for name in theirs)
        assert moved > 1e-3, "nothing was learned"
        if dist.get_rank() == 0:
            print(f"{case} {worst:.3e}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end_process(0)
