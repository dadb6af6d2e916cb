r"""Reconstruct a trace from a model's shape and the time of its whole step, where nothing else is known.

  wirebench trace reconstruct --model resnet50 --stride-first --seconds 0.56 --batch 32 \
      --out configs/traces/resnet50_k80.json

A part of the backward time goes to the modules with parameters by their multiply-adds, the rest to all alike. Forward
times are half of the backward times. A module is one layer: weight and bias travel together. This makes the MG-WFBP
paper's simulated claims for ResNet-50 comparable, whose log was not published. Its ResNet-50 has 7.8 GFLOP: like He et
al. and Caffe it has the stride in a block's first convolution. torchvision's has 8.2.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from wirebench import models
from wirebench.errors import UserError
from wirebench.simulation.trace import Paced, Trace, TraceLayer
from wirebench.telemetry.environment import TORCH
from wirebench.utils.cli import check_outputs, parser_of

BY_WORK = 0.9
FORWARD_SHARE = 0.5
PIXELS, CLASSES, IMAGES = 224, 1000, 2
"""The input on which multiply-adds are counted; normalisation needs more than one image."""


def main(arguments: Sequence[str]) -> int:
    """Reconstruct the trace and write it."""
    options = _parser().parse_args(arguments)
    if options.seconds <= 0 or options.batch < 1:
        raise UserError("--seconds and --batch: need to be positive")
    check_outputs(out=options.out)
    trace = reconstruct(options, options.out.stem)
    trace.save(options.out)
    print(f"{options.out}: {len(trace.layers)} layers, {trace.numel:,} parameters (reconstructed, not measured)")
    return 0


def reconstruct(options: argparse.Namespace, name: str) -> Trace:
    """A trace whose forward and backward passes take `options.seconds` together."""
    work = multiply_adds(options.model, options.stride_first)
    backward, total = options.seconds / (1 + FORWARD_SHARE), sum(each for _, each in work.values())
    layers = []
    for layer, (numel, own_work) in work.items():
        own = backward * (BY_WORK * own_work / total + (1 - BY_WORK) / len(work))
        # A parameter of a module: a split schedule updates it when the module begins.
        layers.append(TraceLayer(f"{layer}.weight", numel, round(FORWARD_SHARE * own, 9), round(own, 9)))
    strides = ", strides in the blocks' first convolutions" if options.stride_first else ""
    described = f"{options.model}, 3x{PIXELS}x{PIXELS}, {CLASSES} classes{strides}"
    return Trace(
        name, described, options.hardware, options.batch, True,
        f"wirebench trace reconstruct: {100 * BY_WORK:.0f} % of the backward time by multiply-adds, the rest alike; "
        f"the whole step of {options.seconds:g} s is assumed",
        TORCH, tuple(layers),
    )  # fmt: skip


def multiply_adds(model_name: str, stride_first: bool = False) -> dict[str, tuple[int, float]]:
    """(parameters, multiply-adds of one image) of every module with parameters, in the order in which they run."""
    with torch.device("meta"):
        model: nn.Module = models.build(model_name, CLASSES, (3, PIXELS, PIXELS))
    if isinstance(model, Paced):
        raise UserError("--model: it computes nothing that could be counted")
    if stride_first:
        _move_strides(model)
    numel: dict[str, int] = {}

    def note(name: str, module: nn.Module) -> None:
        numel[name] = sum(parameter.numel() for parameter in module.parameters(recurse=False))

    for name, module in model.named_modules():
        if list(module.parameters(recurse=False)):
            module.register_forward_hook(lambda module, _inputs, _output, name=name: note(name, module))
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(IMAGES, 3, PIXELS, PIXELS, device="meta"))
    counts: dict[str, Any] = counter.get_flop_counts()
    flops = {path.partition(".")[2]: sum(operations.values()) for path, operations in counts.items()}
    return {name: (count, flops.get(name, 0) / (2 * IMAGES)) for name, count in numel.items()}


def _move_strides(model: nn.Module) -> None:
    """Move strides from the second convolution of every block of three to the first."""
    blocks: list[Any] = [module for module in model.modules() if all(hasattr(module, f"conv{i}") for i in (1, 2, 3))]
    strided = [block for block in blocks if block.conv2.stride != (1, 1)]
    if not strided:
        raise UserError("--stride-first: the model has no blocks of three convolutions with a stride in the second")
    for block in strided:
        block.conv1.stride, block.conv2.stride = block.conv2.stride, block.conv1.stride


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("trace reconstruct", __doc__)
    parser.add_argument("--model", required=True, help="a model of models/, for 224x224 pixels, e.g. resnet50")
    first = "the stride of a block in its first convolution, as published; torchvision has it in the second"
    parser.add_argument("--stride-first", action="store_true", help=first)
    parser.add_argument("--seconds", type=float, required=True, help="of forward and backward pass together")
    parser.add_argument("--batch", type=int, required=True, help="images of that step")
    parser.add_argument("--hardware", default="NVIDIA Tesla K80 (assumed)", help="in words (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the trace to write (.json)")
    return parser
