"""What `test_comm_hook.py` runs on every rank: each compressor through DDP's hook, and through train.py's own driver.

Arguments: names of compressors. The driver gets the buckets that DDP has settled on, and the same gradients. Rank 0
prints, for each name, the number of buckets and the largest difference of any parameter after all steps.
"""

import copy
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import compressors
import wirebench
from wirebench import collectives
from wirebench.comm.engine import Engine
from wirebench.comm.launch import end_process
from wirebench.dropin.assembly import lane_of
from wirebench.dropin.comm_hook import CommHook
from wirebench.dropin.ddp_buckets import DENSE_STEPS
from wirebench.exchange.overlapped import Threaded
from wirebench.gradient.flat import FlatGradient
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.timeline import Timeline
from wirebench.topology.tree import Topology

STEPS, RATE, CAP_MB = 6, 0.05, 0.02


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, 10)
    )  # fmt: skip


def batch(step: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    return torch.randn(8, 3, 8, 8, generator=rng), torch.randint(0, 10, (8,), generator=rng)


def backward(model: nn.Module, step: int) -> None:
    images, labels = batch(step)
    nn.functional.cross_entropy(model(images), labels).backward()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), RATE)


def through_hook(name: str) -> tuple[nn.Module, CommHook]:
    model = network()
    cap = 25.0 if compressors.build(name).whole_model else CAP_MB
    ddp = DistributedDataParallel(model, bucket_cap_mb=cap)
    hook = wirebench.comm_hook(compressors.build(name), warmup_steps=DENSE_STEPS)
    ddp.register_comm_hook(None, hook)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(ddp, step)
        optimizer.step()
    return model, hook


def through_driver(name: str, model: nn.Module, hook: CommHook) -> nn.Module:
    """A model of its own, trained with the buckets of `hook`, whose model is `model`."""
    assert hook._job is not None
    engine, cut = hook._job.engine, hook._job._buckets
    names = {id(parameter): each for each, parameter in model.named_parameters()}
    mine = network()
    flat = FlatGradient(mine, [names[id(parameter)] for group in cut._cut for parameter in group])
    flat.layers = cut.layers  # some methods draw by a layer's name, and a hook does not learn the model's
    compressor = compressors.build(name)
    lane = lane_of(
        engine.ranks[0], flat, compressor, engine.communicators[0],
        collectives.build(compressor.collective or "native"), Topology.flat(engine.size), 0, clock(engine),
    )  # fmt: skip
    lane.set_buckets(cut.groups)
    driver, optimizer = Threaded(lane, Timeline(engine.ranks[0])), optimizer_of(mine)
    for step in range(STEPS):
        driver.begin(step, 0)
        if step >= DENSE_STEPS:
            driver.enable_sync()
            backward(mine, step)
            driver.finish()
        else:
            backward(mine, step)
            dist.all_reduce(flat.grad)
            flat.grad.div_(engine.size)
        optimizer.step()
    driver.close()
    return mine


def clock(engine: Engine) -> Clock:
    return Clock(engine.device, Timeline(engine.ranks[0]))


def main() -> None:
    dist.init_process_group("gloo")
    for name in sys.argv[1:]:
        model, hook = through_hook(name)
        other = copy.deepcopy(through_driver(name, model, hook))
        theirs = dict(other.named_parameters())
        with torch.no_grad():
            worst = max(float((p - theirs[key]).abs().max()) for key, p in model.named_parameters())
        start = dict(network().named_parameters())
        assert any(not torch.equal(p, start[key]) for key, p in model.named_parameters()), "nothing was learned"
        if dist.get_rank() == 0:
            assert hook._job is not None
            print(f"{name} {len(hook._job._buckets.groups)} {worst:.3e} {hook.report()['bytes_per_step']['wire']}")
        hook.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    end_process(0)
