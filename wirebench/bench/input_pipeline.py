"""Measure the CIFAR-10 input pipeline beside the training step that it feeds, on one core.

  wirebench bench input
  wirebench bench input --root data/cifar10 --precision fp32

Input (gather, crop, flip, normalise: float32 batches ready for the model) and ResNet-20's forward, backward and update
take turns on the same core, so both see the same machine. The pipeline is fast enough when it could feed the step
`--limit` times over. Exit code 1 where it could not.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from wirebench import data, models
from wirebench.data import Shard
from wirebench.data.base import Batch
from wirebench.data.cifar10 import MEAN, STD
from wirebench.data.memory import InMemory
from wirebench.utils import this_machine
from wirebench.utils.cli import check_outputs, parser_of
from wirebench.utils.files import write_atomically

CPU = torch.device("cpu")


def open_data(root: str) -> data.Dataset:
    """CIFAR-10 from `root`, or random images in its place."""
    if root:
        return data.build("cifar10", root)
    random = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=random)
    labels = torch.randint(0, 10, (50_000,), generator=random)
    return InMemory((images, labels), (images[:0], labels[:0]), 10, MEAN, STD, pad=4, flip=True)


def endless(shard: Shard) -> Iterator[Batch]:
    """Training batches, epoch after epoch: the cost of starting an epoch is part of what is measured."""
    epoch = 0
    while True:
        yield from shard.train(epoch)
        epoch += 1


def training_step(precision: str) -> Callable[[Tensor, Tensor], None]:
    """One forward, backward and update of ResNet-20 on a batch."""
    model: nn.Module = models.build("resnet_cifar", 10, (3, 32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(images: Tensor, labels: Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def in_turns(batches: Iterator[Batch], step: Callable[[Tensor, Tensor], None], options: argparse.Namespace) -> dict:
    """Images per second of both sides in each turn (A B A B ...), and input / training: median, least and most."""
    images, labels = next(batches)
    step(images, labels)
    input_rates, training_rates = [], []
    for _ in range(options.turns):
        start = time.perf_counter()
        for _ in range(options.input_batches):
            next(batches)
        middle = time.perf_counter()
        for _ in range(options.steps):
            step(images, labels)
        end = time.perf_counter()
        input_rates.append(options.input_batches * options.batch_size / (middle - start))
        training_rates.append(options.steps * options.batch_size / (end - middle))
    ratios = [a / b for a, b in zip(input_rates, training_rates, strict=True)]
    return {
        "input_images_per_second": input_rates,
        "training_images_per_second": training_rates,
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
    }


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and say by the exit code whether the limit is kept."""
    options = _parse(arguments)
    check_outputs(json=options.json)
    torch.set_num_threads(1)
    this_machine.stay_on_one_core()
    shard = Shard(open_data(options.root), 0, 1, options.batch_size, 0, 0, CPU)
    report: dict = {"torch": torch.__version__, "images": "cifar10" if options.root else "random"}
    report |= {"batch_size": options.batch_size, "limit": options.limit, "precision": {}}
    kept = True
    for precision in options.precision:
        result = in_turns(endless(shard), training_step(precision), options)
        report["precision"][precision] = result
        ratio, passed = result["ratio"], result["ratio"]["median"] >= options.limit
        kept = kept and passed
        input_rate = statistics.median(result["input_images_per_second"])
        training_rate = statistics.median(result["training_images_per_second"])
        print(
            f"{precision}: input {input_rate:,.0f} images/s, ResNet-20 training {training_rate:,.0f} images/s: "
            f"{ratio['median']:.0f} x ({ratio['min']:.0f} to {ratio['max']:.0f} in {options.turns} turns), "
            f"limit {options.limit:g} x: {'kept' if passed else 'NOT KEPT'}"
        )
    if options.json:
        write_atomically(options.json, json.dumps(report, indent=2) + "\n")
    return 0 if kept else 1


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = parser_of("bench input", __doc__)
    parser.add_argument("--root", default="", help="folder of CIFAR-10 (default: random images of the same size)")
    parser.add_argument("--batch-size", type=int, default=128, help="images per batch (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=5, help="turns of each side (default: %(default)s)")
    parser.add_argument("--input-batches", type=int, default=50, help="batches per input turn (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=2, help="steps per training turn (default: %(default)s)")
    parser.add_argument("--precision", nargs="+", choices=["fp32", "bf16"], default=["fp32", "bf16"])
    parser.add_argument("--limit", type=float, default=20.0, help="least ratio that passes (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there as well")
    options = parser.parse_args(arguments)
    if min(options.batch_size, options.turns, options.input_batches, options.steps) < 1:
        parser.error("--batch-size, --turns, --input-batches and --steps need at least 1")
    return options
