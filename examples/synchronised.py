"""A training loop as PyTorch's own tutorial has it. plain_ddp.py and synchronised.py differ in five lines.

torchrun --nproc-per-node 2 examples/plain_ddp.py
torchrun --nproc-per-node 2 examples/synchronised.py
"""

import argparse
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import wirebench
from wirebench import compressors, schedulers


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    dataset = TensorDataset(images, torch.tensor(digits.target))
    sampler = DistributedSampler(dataset, seed=0)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)

    model: nn.Module = nn.Sequential(
        nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    sync = wirebench.synchronise(model, compressors.build("topk", density=0.01), schedulers.build("fused"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        begin = time.perf_counter()
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            sync.step(optimizer)
        if dist.get_rank() == 0:
            step = (time.perf_counter() - begin) / len(loader)
            print(f"epoch {epoch}  loss {loss.item():.4f}  {1e3 * step:.1f} ms a step")

    dist.destroy_process_group()


if __name__ == "__main__":
    main()
