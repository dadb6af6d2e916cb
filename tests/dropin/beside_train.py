"""What `test_synchronise.py` runs on every rank: each compressor through DDP's hook, and in a run of train.py.

Arguments: names of compressors. train.py's run is composed from a config and does train.py's own steps; its scheduler
`fused` closes a message where DDP closes a bucket. It begins with the weights that the hook's dense steps have left.
Rank 0 prints, for each name: the number of buckets, the largest difference of any parameter after all steps, and the
hook's bytes a step.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import wirebench
from wirebench import compressors
from wirebench.comm.engine import start
from wirebench.comm.launch import end_process
from wirebench.compose.build import compose
from wirebench.config import loader
from wirebench.config.loader import Config, EngineConfig
from wirebench.dropin.comm_hook import CommHook
from wirebench.training.loop import train_step
from wirebench.training.loss import cross_entropy
from wirebench.training.optimizers.build import build_optimizer
from wirebench.training.progress import silent
from wirebench.training.trainer import Trainer

STEPS, DENSE_STEPS, RATE, BATCH, CAP_MB = 6, 2, 0.05, 8, 0.02
SIZE, CLASSES = 8, 10


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 64), nn.ReLU(),
        nn.Linear(64, CLASSES),
    )  # fmt: skip


def batch(step: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1000 * dist.get_rank() + step)
    images = torch.randn(BATCH, 3, SIZE, SIZE, generator=rng)
    return images, torch.randint(0, CLASSES, (BATCH,), generator=rng)


def cap_of(name: str) -> float:
    return 25.0 if compressors.build(name).whole_model else CAP_MB


def config(name: str, folder: str) -> Config:
    """As the hook has it: all layers compressed, no momentum of the optimizer's."""
    size, cap = dist.get_world_size(), cap_of(name)
    table = {
        "engine": {"name": "torch"},
        "model": {"name": "tests.dropin.beside_train.network"},
        "data": {
            "name": "synthetic", "image_size": SIZE, "num_classes": CLASSES, "batch_size": BATCH,
            "train_size": BATCH * size * STEPS,
        },
        "compressor": {"name": name, "dense_below": 0},
        "scheduler": {"name": "fused", "bucket_cap_mb": cap, "first_bucket_mb": cap},
        "optimizer": {"lr": RATE, "momentum": 0.0},
        "output": {"dir": folder, "tensorboard": False, "trace_steps": 0},
    }  # fmt: skip
    return loader.from_dict(table)


def through_hook(name: str, settings: Config) -> tuple[nn.Module, CommHook, list[Tensor]]:
    """The trained model, its hook, and the weights after the dense steps."""
    model = network()
    ddp = DistributedDataParallel(model, bucket_cap_mb=cap_of(name))
    hook = wirebench.comm_hook(compressors.build(name), warmup_steps=DENSE_STEPS)
    ddp.register_comm_hook(None, hook)
    optimizer = build_optimizer(model, settings.optimizer)
    begun: list[Tensor] = []
    for step in range(STEPS):
        if step == DENSE_STEPS:
            begun = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        images, labels = batch(step)
        cross_entropy(ddp(images), labels).backward()
        optimizer.step()
    return model, hook, begun


def through_train(run: Trainer, begun: Sequence[Tensor]) -> nn.Module:
    """The model of train.py's run, after the same steps from these weights on."""
    (worker,) = run.workers
    with torch.no_grad():
        for parameter, value in zip(worker.model.parameters(), begun, strict=True):
            parameter.copy_(value)
    run.step_log.progress = silent()  # its lines would stand between the results
    run.start_clock()
    batches = iter([batch(step) for step in range(DENSE_STEPS, STEPS)])
    for _ in range(DENSE_STEPS, STEPS):
        train_step(run, 0, [batches])
    run.pause_clock()
    return worker.model


def same_cut(run: Trainer, hook: CommHook) -> bool:
    """Whether the run's messages are DDP's buckets."""
    assert hook._job is not None
    cut = hook._job._buckets
    theirs = [[(layer.start, layer.stop) for layer in cut.layers[g.start : g.stop]] for g in cut.groups]
    return theirs == [[(layer.start, layer.stop) for layer in bucket.layers] for bucket in run.lanes[0].buckets]


def main() -> None:
    engine = start(EngineConfig(name="torch", device="cpu"), fusion_mb=None)
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:]:
            settings = config(name, str(Path(folder) / name))
            model, hook, begun = through_hook(name, settings)
            if compressors.build(name).makes_update:
                untouched = zip(begun, network().parameters(), strict=True)
                assert all(torch.equal(a, b) for a, b in untouched), f"{name}: dense steps at a rate for updates"
            run = compose(settings, engine)
            assert same_cut(run, hook), name
            theirs = list(through_train(run, begun).parameters())
            mine = [parameter.detach() for parameter in model.parameters()]
            worst = max(float((a - b).abs().max()) for a, b in zip(mine, theirs, strict=True))
            assert any(not torch.equal(a, b) for a, b in zip(mine, begun, strict=True)), "nothing was learned"
            if engine.is_first:
                print(f"{name} {len(run.lanes[0].buckets)} {worst:.3e} {hook.report()['bytes_per_step']['wire']}")
            hook.close()
            run.synchroniser.close()
            run.record.close()
    engine.close()


if __name__ == "__main__":
    main()
    end_process(0)
