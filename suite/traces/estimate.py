"""Estimate a trace: what a training step of a model would take, layer by layer, on a GPU that is not at hand.

  wirebench trace estimate --model resnet50 --gpu v100 --batch 32 --out configs/traces/resnet50_v100.json
  wirebench trace estimate --model vgg_cifar --option depth=16 --gpu v100 --batch 128 --image-size 32 --classes 10

One step runs on tensors without data. Every operation, forward and backward, is priced by the roofline (Williams et al.
2009): max(floating-point operations / attainable rate, bytes / memory bandwidth), where it reads its inputs and writes
its outputs once. What the backward pass spends between two gradients belongs to the later one, so time without
parameters goes to the next layer that has some. Without --out it prints the totals only.
"""

import argparse
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import models
from wirebench.errors import UserError
from wirebench.simulation.roofline import GPUS, Gpu, Roofline
from wirebench.simulation.trace import Paced, Trace, TraceLayer
from wirebench.training.loss import cross_entropy
from wirebench.utils.cli import parser_of
from wirebench.utils.names import suggest

DIGITS = 4
"""Significant digits of a time: an estimate has not more to say."""


def estimate(
    model_name: str,
    options: dict[str, Any],
    gpu: Gpu,
    batch_size: int,
    image_size: int,
    num_classes: int,
    name: str,
) -> Trace:
    """The trace of a step with 3-channel images; parameters that get no gradient are left out.

    Raises UserError for what the model does not take.
    """
    check_sizes(batch_size, image_size, num_classes)
    with torch.device("meta"):
        model = models.build(model_name, num_classes, (3, image_size, image_size), **options)
    if isinstance(model, Paced):
        raise UserError("--model: it computes nothing that could be estimated")
    try:
        forward, backward = _step(model, gpu, (batch_size, 3, image_size, image_size))
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"--image-size: {model_name!r} takes no images of {image_size} pixels: {reason}") from error
    parameters = dict(model.named_parameters())
    layers = tuple(
        TraceLayer(each, p.numel(), _round(forward.get(each, 0.0)), _round(backward[each]), tuple(p.shape))
        for each, p in ((each, parameters[each]) for each in reversed(backward))
    )
    described = " ".join([model_name, *(f"{key}={json.dumps(value)}" for key, value in options.items())])
    return Trace(
        name,
        f"{described}, 3x{image_size}x{image_size}, {num_classes} classes",
        gpu.label,
        batch_size,
        True,
        f"wirebench trace estimate: per operation max(flops / ({gpu.efficiency:g} x {gpu.peak_tflops} TFLOPS), "
        f"bytes read and written once / {gpu.memory_gbs} GB/s), fp32; peak and bandwidth: {gpu.source}; "
        "the share of the peak is assumed",
        torch.__version__.partition("+")[0],
        layers,
    )


def _step(model: nn.Module, gpu: Gpu, batch_shape: tuple[int, ...]) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of one step by parameter: forward in order of use, backward in the order in which gradients come."""
    roofline = Roofline(gpu)
    forward: dict[str, float] = {}
    backward: dict[str, float] = {}
    _watch(model, roofline, forward, backward)
    images = torch.empty(batch_shape, device="meta")
    labels = torch.empty(len(images), dtype=torch.int64, device="meta")
    with roofline:
        loss = cross_entropy(model(images), labels)
        forward[next(reversed(forward))] += roofline.take()
        loss.backward()
    return forward, backward


def _watch(model: nn.Module, roofline: Roofline, forward: dict[str, float], backward: dict[str, float]) -> None:
    """Book what was spent so far whenever a module with parameters begins, and whenever a gradient is there.

    What comes before the first module with parameters is its own; what comes after one, until the next, belongs to it.
    """

    def begin(first: str) -> None:
        before = next(reversed(forward), first)
        forward[before] = forward.get(before, 0.0) + roofline.take()
        # Last in order from now on, also where it ran before.
        forward[first] = forward.pop(first, 0.0)

    def arrived(name: str) -> None:
        backward[name] = roofline.take()

    for prefix, module in model.named_modules():
        for name, _ in list(module.named_parameters(prefix, recurse=False))[:1]:
            module.register_forward_pre_hook(lambda _module, _inputs, name=name: begin(name))
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(lambda _parameter, name=name: arrived(name))


def _round(seconds: float) -> float:
    return float(f"{seconds:.{DIGITS}g}")


def main(arguments: Sequence[str]) -> int:
    """Estimate, write what was asked for, and print the totals."""
    options = _parser().parse_args(arguments)
    name = options.out.stem if options.out else f"{options.model}_{options.gpu}"
    chosen, gpu = model_options(options.option), gpu_of(options.gpu)
    trace = estimate(options.model, chosen, gpu, options.batch, options.image_size, options.classes, name)
    if options.out:
        trace.save(options.out)
    print(
        f"{trace.name}: {len(trace.layers)} layers, {trace.numel:,} parameters, "
        f"forward {1e3 * trace.forward_seconds:.2f} ms, backward {1e3 * trace.backward_seconds:.2f} ms "
        f"at batch size {trace.batch_size} (estimated, not measured)"
    )
    return 0


def check_sizes(batch_size: int, image_size: int, num_classes: int) -> None:
    """Raise UserError for a size that no batch of images has."""
    for option, value, least in (("batch", batch_size, 1), ("image-size", image_size, 1), ("classes", num_classes, 2)):
        if value < least:
            raise UserError(f"--{option}: needs at least {least}, got {value}")


def gpu_of(name: str) -> Gpu:
    """The GPU of this name; UserError lists those that are known."""
    if name not in GPUS:
        raise UserError(f"--gpu: no GPU {name!r}; {suggest(name, list(GPUS))}")
    return GPUS[name]


def model_options(given: Sequence[str]) -> dict[str, Any]:
    """The options of a model, from KEY=VALUE with values as in TOML or plain words; UserError for anything else."""
    return dict(_option(text) for text in given)


def _option(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"--option: needs KEY=VALUE, e.g. depth=20, got {text!r}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"]
    except ValueError:
        return key, value


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("trace estimate", __doc__)
    parser.add_argument("--model", required=True, help="a model of models/, e.g. resnet50")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the model")
    parser.add_argument("--gpu", required=True, help=f"one of {', '.join(GPUS)}")
    parser.add_argument("--batch", type=int, required=True, help="images per step")
    parser.add_argument("--image-size", type=int, default=224, help="height and width in pixels (%(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="classes that the model tells apart (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the trace to write (.json)")
    return parser
