"""What compressors are measured on: the layers of real models, and gradients that look like theirs."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from wirebench import models
from wirebench.errors import UserError
from wirebench.gradient.flat import Bucket, FlatGradient, Layer
from wirebench.utils.rng import generator

REAL: dict[str, tuple[str, str, dict[str, Any], int, int]] = {
    "0.27m": ("ResNet-20", "resnet_cifar", {"depth": 20}, 10, 32),
    "14.7m": ("VGG-16 (CIFAR-10)", "vgg_cifar", {"depth": 16}, 10, 32),
    "25.6m": ("ResNet-50", "resnet50", {}, 1000, 224),
    "138m": ("VGG-16", "vgg16", {}, 1000, 224),
}
"""Models by their size: title, model, its options, classes, side of the images."""
UNITS = {"": 1, "k": 1_000, "m": 1_000_000}

GRADIENTS = (
    "Student's t, 3 degrees of freedom; each layer's scale is drawn log-uniformly from 1e-4 to 3e-3; every step reads "
    "the same draws from another place on, the same for all methods"
)
DEGREES = 3
SCALES = (1e-4, 3e-3)
LEAST_TARGETS = 1 << 23
"""Floats: 32 MB, more than a core's own cache holds."""
_BLOCK = 1 << 20
_STRIDE = 0.381966  # of the vector, from step to step: the golden section returns late


@dataclass(frozen=True)
class Size:
    """A vector to compress: what it is called on the command line and in titles, and the layers that it is cut into."""

    name: str
    model: str
    layers: tuple[Layer, ...]

    @property
    def numel(self) -> int:
        """Elements of the vector."""
        return self.layers[-1].stop


def parse_size(text: str) -> Size:
    """A size of REAL, or any number of floats (4k, 2m), laid out as a square matrix and a bias."""
    name = text.lower()
    if name in REAL:
        title, model, options, classes, side = REAL[name]
        return Size(name, title, _layers_of(model, options, classes, side))
    number = name.rstrip("km")
    unit = name[len(number) :]
    if not number.isdecimal() or unit not in UNITS or not int(number):
        raise UserError(
            f"--sizes: cannot read {text!r}; there is {', '.join(REAL)}, and any whole number of floats: 500, 4k, 2m"
        )
    return Size(name, f"{text} floats", _square(int(number) * UNITS[unit]))


def _layers_of(model: str, options: dict[str, Any], classes: int, side: int) -> tuple[Layer, ...]:
    """A model's layers, last first as a backward pass comes to them; nothing is allocated."""
    with torch.device("meta"):
        built = models.build(model, classes, (3, side, side), **options)
    return FlatGradient(built, [name for name, _ in built.named_parameters()][::-1]).layers


def _square(numel: int) -> tuple[Layer, ...]:
    side = math.isqrt(numel)
    matrix = Layer("weight", 0, side * side, 2, side)
    rest = numel - side * side
    return (matrix, Layer("bias", matrix.stop, numel, 1, rest)) if rest else (matrix,)


class BucketInputs:
    """The bucket of a whole model, whose gradient can be made anew for every step.

    It holds 4 vectors: draws, gradient, parameters, and the target of the copies. A small vector is copied to another
    place every time, since what a method keeps is no more in the cache at its next step than that is.
    """

    def __init__(self, size: Size, device: torch.device) -> None:
        self.size = size
        rng = generator("bench_compressors", size.numel, device=device)
        self.draws = heavy_tailed(size.numel, rng, device)
        self.grad, self.param = torch.zeros_like(self.draws), torch.zeros_like(self.draws)
        self.targets = torch.zeros(max(1, LEAST_TARGETS // size.numel), size.numel, device=device)
        self._gathered = 0
        low, high = (math.log(scale) for scale in SCALES)
        uniform = torch.rand(len(size.layers), generator=generator("bench_compressors scales", size.numel))
        self.scales = torch.exp(low + (high - low) * uniform).tolist()
        for layer in size.layers:
            # As layers are initialised; parameters matter to methods that weigh gradients by them.
            deviation = math.sqrt(2 * layer.rows / layer.numel) if layer.ndim > 1 else 0.1
            self.param[layer.start : layer.stop].normal_(0, deviation, generator=rng)

    def bucket(self, step: int) -> Bucket:
        """The whole model as one bucket, with the gradient of this step."""
        numel = self.size.numel
        cut = int(step * _STRIDE * numel) % numel
        self.grad[: numel - cut].copy_(self.draws[cut:])
        self.grad[numel - cut :].copy_(self.draws[:cut])
        for layer, scale in zip(self.size.layers, self.scales, strict=True):
            self.grad[layer.start : layer.stop].mul_(scale)
        return Bucket(0, self.grad, self.param, self.size.layers, self.size.layers)

    def copy(self) -> None:
        """The unit of all times."""
        self._gathered += 1
        self.targets[self._gathered % len(self.targets)].copy_(self.grad)


def heavy_tailed(numel: int, rng: torch.Generator, device: torch.device) -> Tensor:
    """Draws of Student's t with DEGREES degrees of freedom, fp32: of a million, 15,000 lie beyond 5, 270 beyond 20."""
    drawn = torch.empty(numel, device=device)
    for start in range(0, numel, _BLOCK):
        block = drawn[start : start + _BLOCK]
        block.normal_(generator=rng)
        squares = torch.zeros_like(block)
        for _ in range(DEGREES):
            squares.add_(torch.randn(block.shape, generator=rng, device=device).square_())
        block.div_(squares.div_(DEGREES).sqrt_())
    return drawn
