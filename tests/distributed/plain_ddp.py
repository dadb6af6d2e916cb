"""Training as anybody would write it with DistributedDataParallel: what the suite's own machinery must agree with.

Of the suite it takes the model, the data and the names of random streams; the exchange, the optimizer and the loop are
PyTorch's.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from wirebench import data, models
from wirebench.comm.launch import end_process
from wirebench.config import loader
from wirebench.utils.rng import seed_of


def main(path: str, *overrides: str) -> None:
    """Train as the config says; rank 0 writes the losses to output.dir/steps.jsonl."""
    settings = loader.load(path, overrides)
    dist.init_process_group("gloo")
    rank, size, seed = dist.get_rank(), dist.get_world_size(), settings.train.seed
    dataset = data.build(settings.data.name)
    shard = data.Shard(dataset, rank, size, settings.data.batch_size, 0, seed, torch.device("cpu"))
    torch.manual_seed(seed_of("init", seed))
    model = models.build(settings.model.name, dataset.num_classes, dataset.image_shape)
    replica = DistributedDataParallel(model, broadcast_buffers=False)
    section = settings.optimizer
    optimizer = torch.optim.SGD(model.parameters(), section.lr, section.momentum, weight_decay=section.weight_decay)
    losses: list[float] = []
    while len(losses) < settings.train.max_steps:
        for images, labels in shard.train(len(losses) // shard.steps_per_epoch):
            torch.manual_seed(seed_of("forward", seed, rank, len(losses), 0))
            loss = cross_entropy(replica(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    if rank == 0:
        folder = Path(settings.output.dir)
        folder.mkdir()
        lines = [json.dumps({"step": step, "loss": loss}) for step, loss in enumerate(losses)]
        (folder / "steps.jsonl").write_text("\n".join(lines[: settings.train.max_steps]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
    end_process(0)
