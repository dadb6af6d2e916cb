"""A small GPT on the Python standard library's own sources, byte by byte: AdamW, clipping, and any compressor.

torchrun --nproc-per-node 2 examples/gpt.py
torchrun --nproc-per-node 2 examples/gpt.py --compressor topk --option density=0.01 --scheduler mg_wfbp
torchrun --nproc-per-node 2 examples/gpt.py --compressor powersgd
"""

import argparse
import math
import sysconfig
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import wirebench
from wirebench import compressors, schedulers

BYTES = 256


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Bytes (N, length) -> logits (N, length, 256); the embedding is the head's weight, too."""

    def __init__(self, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(BYTES, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, BYTES, bias=False)
        self.embedding.weight = self.head.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.embedding(tokens) + places)))


def sources(most: int) -> Tensor:
    """The standard library's modules, one after the other, as bytes: `most` of them at most."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= most:
            break
    return torch.frombuffer(text[:most], dtype=torch.uint8).long()


def batch(text: Tensor, options: argparse.Namespace, step: int) -> tuple[Tensor, Tensor]:
    """Sequences from random places of the text, other ones on each rank, and each byte's successor."""
    rng = torch.Generator().manual_seed(1_000_003 * dist.get_rank() + step)
    starts = torch.randint(0, len(text) - options.length - 1, (options.batch,), generator=rng)
    rows = text[starts[:, None] + torch.arange(options.length + 1)]
    return rows[:, :-1], rows[:, 1:]


def main() -> None:
    options = parse()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    text = sources(options.bytes)
    model = GPT(options.width, options.depth, heads=4, length=options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)

    compressor = compressors.build(options.compressor, **dict(options.option))
    sync = wirebench.synchronise(model, compressor, schedulers.build(options.scheduler))
    for step in range(options.steps):
        inputs, targets = batch(text, options, step)
        loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        sync.wait()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if dist.get_rank() == 0 and (step % 20 == 0 or step == options.steps - 1):
            print(f"step {step}  {loss.item() / math.log(2):.3f} bits per byte", flush=True)

    if dist.get_rank() == 0:
        tell(sync.report())
    sync.close()
    dist.destroy_process_group()


def tell(report: dict[str, Any]) -> None:
    """Print what the exchange cost per step: milliseconds, and megabytes per rank."""
    seconds, sent = report["step_seconds"]["median"], report["bytes_per_step"]
    if seconds is not None:
        exposed = report["phases"]["exchange_exposed"]
        print(f"step {1e3 * seconds:.1f} ms, of which the exchange adds {1e3 * exposed:.1f} ms")
        print(f"{sent['wire'] / 1e6:.3g} MB a step and rank, dense gradients would be {sent['dense'] / 1e6:.3g} MB")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compressor", default="none")
    parser.add_argument("--option", action="append", default=[], type=option, metavar="KEY=VALUE")
    parser.add_argument("--scheduler", default="wfbp")
    for name, default in {
        "steps": 200,
        "width": 128,
        "depth": 4,
        "length": 128,
        "batch": 8,
        "bytes": 2_000_000,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def option(text: str) -> tuple[str, float | int | str]:
    """A compressor's option: a number where it is one."""
    key, _, value = text.partition("=")
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value


if __name__ == "__main__":
    main()
