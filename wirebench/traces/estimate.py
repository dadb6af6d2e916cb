"""Estimate a trace: what a training step of a model would take, layer by layer, on a GPU that is not at hand.

  wirebench trace estimate --model resnet50 --gpu v100 --batch 32 --out configs/traces/resnet50_v100.json
  wirebench trace estimate --model vgg_cifar --option depth=16 --gpu v100 --batch 128 --image-size 32 --classes 10
  wirebench trace estimate --model resnet50 --gpu h100 --precision bf16 --batch 128
  wirebench trace estimate --model mine.GPT --data mine.Sequences --gpu h100 --precision bf16 --batch 16

One step runs on tensors without data. Every operation, forward and backward, is priced by the roofline (Williams et al.
2009): max(floating-point operations / attainable rate, bytes / memory bandwidth), where it reads its inputs and writes
its outputs once. What the backward pass spends between two gradients belongs to the later one, so time without
parameters goes to the next layer that has some. Without --out it prints the totals only.
In tf32 only the rate of matrix products and convolutions changes. In bf16 and fp16 the step runs under autocast: what
that casts has half of the bytes, the casts are priced, and parameters and gradients stay fp32.
"""

import argparse
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from wirebench.errors import UserError
from wirebench.simulation.roofline import CAST, GPUS, PRECISIONS, Gpu, Precision, Roofline
from wirebench.simulation.trace import SHIPPED, Paced, Trace, TraceLayer, load
from wirebench.telemetry.environment import TORCH
from wirebench.traces import inputs
from wirebench.traces.inputs import NOT_TRAINED, Inputs
from wirebench.training.loss import cross_entropy
from wirebench.utils.cli import check_outputs, parser_of
from wirebench.utils.names import suggest
from wirebench.utils.parsing import value_of

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode

DIGITS = 4
"""Significant digits of a time: an estimate has not more to say."""
WORDS: dict[Precision, str] = {
    "fp32": "fp32", "tf32": "matrix products in tf32", "bf16": "bf16 by autocast", "fp16": "fp16 by autocast",
}  # fmt: skip


def estimate(
    model_name: str, options: dict[str, Any], gpu: Gpu, given: Inputs, name: str, precision: Precision = "fp32"
) -> Trace:
    """The trace of a step on these inputs; parameters that get no gradient are left out.

    Raises UserError for what the model does not take, and for a precision that the GPU has no rate for.
    """
    check_precision(gpu, precision)
    with _without_numbers() as mode:
        model = _built(model_name, options, given, mode)
        if isinstance(model, Paced):
            raise UserError("--model: it computes nothing that could be estimated")
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise UserError(f"--model: {model_name!r} has no parameter that learns")
        try:
            forward, backward = _step(model, Roofline(gpu, precision), given)
        except UserError:
            raise
        except _reads_numbers() as error:
            raise UserError(
                f"--model: {model_name!r} reads a number in its forward pass ({error}), and an estimate computes none"
            ) from error
        except NOT_TRAINED as error:
            raise given.refused(model_name, error) from error
    parameters = dict(model.named_parameters())
    layers = tuple(
        TraceLayer(each, p.numel(), _round(forward.get(each, 0.0)), _round(backward[each]), tuple(p.shape))
        for each, p in ((each, parameters[each]) for each in reversed(backward))
    )
    return replace(_head(model_name, options, gpu, given, name, precision), layers=layers)


def shipped(
    model_name: str, options: dict[str, Any], gpu: Gpu, given: Inputs, name: str, precision: Precision = "fp32"
) -> Trace | None:
    """The estimate from configs/traces, if it is there and its description matches; else None.

    So a model need not be imported, which takes seconds. Tests make these traces anew, and find no difference.
    """
    path = SHIPPED / f"{name}.json"
    if given.dataset is not None or not path.is_file():
        return None
    known = load(path)
    return known if replace(known, layers=()) == _head(model_name, options, gpu, given, name, precision) else None


def _head(model_name: str, options: dict[str, Any], gpu: Gpu, given: Inputs, name: str, precision: Precision) -> Trace:
    """An estimate without its layers."""
    described = " ".join([model_name, *(f"{key}={json.dumps(value)}" for key, value in options.items())])
    return Trace(
        name,
        f"{described}, {given.words}",
        gpu.label,
        given.batch_size,
        True,
        f"wirebench trace estimate: per operation max(flops / ({gpu.efficiency:g} x {gpu.peak(precision)} TFLOPS), "
        f"bytes read and written once / {gpu.memory_gbs} GB/s), {WORDS[precision]}; peak and bandwidth: {gpu.source}; "
        "the share of the peak is assumed",
        TORCH,
        (),
        given.unit,
    )


@contextmanager
def _without_numbers() -> "Iterator[FakeTensorMode]":
    """Tensors of the block have no data and report the device cpu.

    Meta tensors would not do: autocast does not cast them, and attention falls apart into products of all pairs. The
    CPU's fused LSTM kernel is switched off, since its FLOPs are not counted.
    """
    # Imported where it is needed: it brings much along.
    from torch._subclasses.fake_tensor import FakeTensorMode

    fused = torch.backends.mkldnn.set_flags(False)[0]
    try:
        with FakeTensorMode() as mode:
            yield mode
    finally:
        torch.backends.mkldnn.set_flags(fused)


def _built(name: str, options: dict[str, Any], given: Inputs, mode: "FakeTensorMode") -> nn.Module:
    """The model, without numbers; within `mode`.

    A constructor that reads a number (`.item()`), or copies a layer as nn.TransformerEncoder does, needs numbers. Such
    a model is built with them, and loses them afterwards.
    """
    from torch.utils._python_dispatch import _disable_current_modes

    failed: Exception | None = None
    try:
        with warnings.catch_warnings(action="ignore"):  # a copy of what has no numbers warns of its pointer
            model = given.model(name, options)
        _refuse_lazy(model)
        if all(getattr(tensor, "fake_mode", mode) is mode for tensor in (*model.parameters(), *model.buffers())):
            return model
    except UserError:
        raise
    except Exception as error:
        failed = error
    with _disable_current_modes():
        try:
            model = given.model(name, options)
        except UserError:
            raise
        except Exception as error:  # it cannot be built either way
            failed = failed or error
            raise UserError(f"--model: {name!r} cannot be built: {type(failed).__name__}: {failed}") from failed
    _refuse_lazy(model)
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for kept in (module._parameters, module._buffers):
            for key, tensor in kept.items():
                if tensor is not None:
                    if id(tensor) not in made:
                        made[id(tensor)] = mode.from_tensor(tensor)
                    kept[key] = made[id(tensor)]  # type: ignore[assignment]
    return model


def _reads_numbers() -> tuple[type[Exception], ...]:
    """What a tensor without data raises where its values are asked for."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

    return DataDependentOutputException, DynamicOutputShapeException


def _refuse_lazy(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if isinstance(parameter, UninitializedParameter):
            raise UserError(f"--model: {name} has no shape yet; a lazy module gets one in a first forward pass")


def _step(model: nn.Module, roofline: Roofline, given: Inputs) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of one step by parameter: forward in order of use, backward in the order in which gradients come."""
    forward: dict[str, float] = {}
    backward: dict[str, float] = {}
    _watch(model, roofline, forward, backward)
    batch, labels = given.empty("cpu")
    with roofline:
        half = CAST.get(roofline.precision)
        with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
            loss = cross_entropy(model(batch), labels)
        if not forward:
            raise ValueError("no module with parameters of its own is called")
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
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda _parameter, name=name: arrived(name))


def _round(seconds: float) -> float:
    return float(f"{seconds:.{DIGITS}g}")


def main(arguments: Sequence[str]) -> int:
    """Estimate, write what was asked for, and print the totals."""
    options = _parser().parse_args(arguments)
    check_outputs(out=options.out)
    name = options.out.stem if options.out else name_of(options.model, options.gpu, options.precision)
    chosen, gpu = model_options(options.option), gpu_of(options.gpu)
    with inputs.naming_options(options.model, chosen, options.data):
        given = inputs.chosen(options.data, options.batch, options.image_size, options.classes, chosen)
        trace = estimate(options.model, chosen, gpu, given, name, options.precision)
    if options.out:
        trace.save(options.out)
    batch = (
        f"batch size {trace.batch_size}"
        if trace.unit == "images"
        else f"a batch of {trace.batch_size} {trace.unit}, {given.words}"
    )
    print(
        f"{trace.name}: {len(trace.layers)} layers, {trace.numel:,} parameters, "
        f"forward {1e3 * trace.forward_seconds:.2f} ms, backward {1e3 * trace.backward_seconds:.2f} ms "
        f"at {batch} (estimated, not measured)"
    )
    return 0


def name_of(model: str, gpu: str, precision: Precision) -> str:
    """What an estimate is called where no file names it."""
    return f"{model}_{gpu}" if precision == "fp32" else f"{model}_{gpu}_{precision}"


def check_precision(gpu: Gpu, precision: Precision) -> None:
    """Raise UserError for a precision that the GPU has no rate for."""
    if gpu.peak(precision) is None:
        known = ", ".join(each for each in PRECISIONS if gpu.peak(each) is not None)
        raise UserError(f"--precision: {gpu.label} has no rate for {precision}; there is: {known}")


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
    return key, value_of(value)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("trace estimate", __doc__)
    parser.add_argument("--model", required=True, help="a model of models/, e.g. resnet50")
    parser.add_argument("--gpu", required=True, help=f"one of {', '.join(GPUS)}")
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32", help="what it computes in (%(default)s)")
    parser.add_argument("--batch", type=int, required=True, help="images, or other samples, per step")
    inputs.add_inputs(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the trace to write (.json)")
    return parser
