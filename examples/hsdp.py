"""A small GPT in pods: FSDP2 shards it over the two ranks of a pod, and compressed gradients go between pods.

torchrun --nproc-per-node 4 examples/hsdp.py
torchrun --nproc-per-node 4 examples/hsdp.py --compressor none
"""

import argparse
import math
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import wirebench
from wirebench import compressors

BYTES, LENGTH, BATCH = 256, 64, 8


class GPT(nn.Module):
    """Bytes (N, LENGTH) -> logits (N, LENGTH, 256)."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(BYTES, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.head(self.norm(x))


def source(name: str) -> Tensor:
    """A module of the standard library, as bytes."""
    code = Path(sysconfig.get_paths()["stdlib"], name).read_bytes()
    return torch.frombuffer(bytearray(code), dtype=torch.uint8).long()


def batch(text: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Sequences from random places of the text, other ones on each rank, and each byte's successor."""
    rng = torch.Generator().manual_seed(1_000_003 * dist.get_rank() + step)
    starts = torch.randint(0, len(text) - LENGTH - 1, (BATCH,), generator=rng)
    rows = text[starts[:, None] + torch.arange(LENGTH + 1)]
    return rows[:, :-1], rows[:, 1:]


def main() -> None:
    options = parse()
    dist.init_process_group("gloo")
    if dist.get_world_size() % 2:
        raise SystemExit("a pod has two processes: torchrun --nproc-per-node 4 examples/hsdp.py")
    torch.manual_seed(0)
    text = source("argparse.py")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicate", "shard"))
    model = GPT(options.width, options.depth)
    for block in model.blocks:
        fully_shard(block, mesh=mesh["shard"])
    fully_shard(model, mesh=mesh["shard"])
    replicas = wirebench.compress_replicas(model, compressors.build(options.compressor), mesh["replicate"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)

    for step in range(options.steps):
        inputs, targets = batch(text, step)
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if dist.get_rank() == 0 and (step % 10 == 0 or step == options.steps - 1):
            print(f"step {step}  {loss.item() / math.log(2):.3f} bits per byte", flush=True)

    if dist.get_rank() == 0:
        sent, dense = (replicas.report()["bytes_per_step"][kind] for kind in ("wire", "dense"))
        if sent is None:
            print("no step has counted yet: a report leaves out the first 10")
        else:
            print(f"{sent / 1e3:.3g} kB a step and rank between pods, dense gradients would be {dense / 1e3:.3g} kB")
    replicas.close()
    dist.destroy_process_group()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compressor", default="powersgd")
    for name, default in {"steps": 50, "width": 64, "depth": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=3e-3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
