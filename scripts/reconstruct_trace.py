#!/usr/bin/env python3
"""Reconstruct a trace from a model's shape and the time of its whole step, where nothing else is known.

python scripts/reconstruct_trace.py --model resnet50 --seconds 0.56 --batch 32 --out configs/traces/resnet50_k80.json

A part of the backward time goes to the modules with parameters by their multiply-adds, the rest to all alike; forward
times are half of the backward times. A module is one layer: weight and bias travel together. This is how the simulated
claims of the MG-WFBP paper for ResNet-50 can be compared, whose log was not published.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import models
from scripts.cluster import Parser
from wirebench.errors import UserError
from wirebench.trace import Trace, TraceLayer

BY_WORK = 0.9
FORWARD_SHARE = 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, or 2 with one line on standard error."""
    try:
        options = _parser().parse_args(arguments)
        if options.seconds <= 0 or options.batch < 1:
            raise UserError("--seconds and --batch: need to be positive")
        trace = reconstruct(options.model, options.seconds, options.batch, options.hardware, options.out.stem)
        try:
            trace.save(options.out)
        except OSError as error:
            raise UserError(f"{options.out}: cannot be written: {error.strerror}") from error
    except UserError as error:
        print(f"reconstruct_trace.py: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{options.out}: {len(trace.layers)} layers, {trace.numel:,} parameters (reconstructed, not measured)")
    return 0


def reconstruct(model_name: str, seconds: float, batch_size: int, hardware: str, name: str) -> Trace:
    """A trace whose forward and backward passes take `seconds` together."""
    work = multiply_adds(model_name)
    backward, total = seconds / (1 + FORWARD_SHARE), sum(flops for _, flops in work.values())
    layers = []
    for layer, (numel, flops) in work.items():
        own = backward * (BY_WORK * flops / total + (1 - BY_WORK) / len(work))
        layers.append(TraceLayer(layer, numel, round(FORWARD_SHARE * own, 9), round(own, 9)))
    return Trace(
        name, f"{model_name}, 3x224x224, 1000 classes", hardware, batch_size, True,
        f"scripts/reconstruct_trace.py: {100 * BY_WORK:.0f} % of the backward time by multiply-adds, the rest alike; "
        f"the whole step of {seconds} s is assumed",
        torch.__version__.partition("+")[0], tuple(layers),
    )  # fmt: skip


def multiply_adds(model_name: str) -> dict[str, tuple[int, float]]:
    """(parameters, floating-point operations of one image) of every module with parameters, in forward order."""
    with torch.device("meta"):
        model: nn.Module = models.build(model_name, 1000, (3, 224, 224))
    found: dict[str, tuple[int, float]] = {}

    def note(name: str, module: nn.Module, output: Tensor) -> None:
        numel = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        found[name] = (numel, 0.0)

    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)):
            module.register_forward_hook(lambda module, _inputs, output, name=name: note(name, module, output))
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(2, 3, 224, 224, device="meta"))
    counts: dict[str, Any] = counter.get_flop_counts()
    for path, operations in counts.items():
        name = path.partition(".")[2]
        if name in found:
            found[name] = (found[name][0], sum(operations.values()) / 2)
    return found


def _parser() -> argparse.ArgumentParser:
    summary, _, rest = str(__doc__).partition("\n")
    parser = Parser(description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a model of models/, for 224x224 pixels, e.g. resnet50")
    parser.add_argument("--seconds", type=float, required=True, help="of forward and backward pass together")
    parser.add_argument("--batch", type=int, required=True, help="images of that step")
    parser.add_argument("--hardware", default="NVIDIA Tesla K80 (assumed)", help="in words (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the trace to write (.json)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
