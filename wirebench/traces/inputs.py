"""What a step computes on: images of a size that was named, or the samples of a data set."""

import argparse
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch

from wirebench import data, models
from wirebench.config.plugins import Plugins
from wirebench.data.base import Batch, Dataset, probe_batch, unit_of
from wirebench.errors import UserError
from wirebench.utils.cli import naming
from wirebench.utils.parsing import plugin_of
from wirebench.utils.rng import generator

IMAGE_SIZE, CLASSES = 224, 1000


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """The options of a model and of what it computes on."""
    add = parser.add_argument
    add("--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the model")
    add("--image-size", type=int, metavar="N", help=f"height and width in pixels ({IMAGE_SIZE})")
    add("--classes", type=int, metavar="N", help=f"classes that the model tells apart ({CLASSES})")
    add("--data", metavar="NAME[:KEY=VALUE...]", help="a data set whose samples the model takes, in place of images")


@dataclass(frozen=True)
class Inputs:
    """A batch, as far as a model's step depends on it.

    shape, dtype  of the inputs, the batch first
    label_shape   of the labels, int64
    num_classes   for model constructors that take it
    image_shape   for model constructors that take it; () if the samples are no images
    words         the batch in words, as in a trace
    unit          what throughput counts
    dataset       the source of the samples; None for random images of a given size
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    label_shape: tuple[int, ...]
    num_classes: int
    image_shape: tuple[int, ...]
    words: str
    unit: Literal["images", "samples"] = "images"
    dataset: Dataset | None = None

    @property
    def batch_size(self) -> int:
        """Images or samples."""
        return self.shape[0]

    def model(self, name: str, options: dict[str, Any]) -> torch.nn.Module:
        """The model for them; UserError for one that does not exist, or takes images where there are none."""
        if not self.image_shape and "image_shape" in models.PLUGINS.parameters(name):
            raise UserError(f"--data: {name!r} takes images, and the data set has none")
        models.PLUGINS.check(name, options, in_config=False)
        return models.build(name, self.num_classes, self.image_shape, **options)

    def empty(self, device: str) -> Batch:
        """The batch without its numbers."""
        inputs = torch.empty(self.shape, dtype=self.dtype, device=device)
        return inputs, torch.empty(self.label_shape, dtype=torch.int64, device=device)

    def real(self, device: torch.device) -> Batch:
        """Noise with labels 0 for images, the first samples of a data set else."""
        if self.dataset is not None and not self.image_shape:
            return probe_batch(self.dataset, self.batch_size, device)
        images = torch.randn(self.shape, generator=generator("probe"))
        return images.to(device), torch.zeros(self.label_shape, dtype=torch.int64, device=device)

    def refused(self, name: str, error: Exception) -> UserError:
        """That the model cannot be trained on them, and why."""
        reason = str(error).partition("\n")[0] or type(error).__name__
        if "more than 1 value per channel" in reason:
            return UserError(f"--batch: {name!r} normalises over a batch and needs more than {self.batch_size}")
        if self.dataset is None:
            pixels = self.image_shape[-1]
            text = f"--image-size: {name!r} takes no images of {pixels} pixels: {reason}"
            return UserError(f"{text}; --data names a data set, if it takes none at all")
        what = f"{str(self.dtype).removeprefix('torch.')} of shape {self.shape}"
        return UserError(f"--data: {name!r} cannot be trained on what it has, {what}: {reason}")


@contextmanager
def naming_options(model: str, options: Mapping[str, Any], named: str | None) -> Iterator[None]:
    """Around what builds a model and its data: a UserError of it names --model, --option and --data, not config keys.

    named  what --data names; None: images
    """
    try:
        yield
    except UserError:
        # Only now: a model takes long to import.
        keys = {"model": "--model", "model.name": "--model", "data": "--data", "data.name": "--data"}
        keys |= _options_of(models.PLUGINS, model, options, "--option {}")
        if named is not None:
            name, *given = named.split(":")
            keys |= _options_of(data.PLUGINS, name, (each.partition("=")[0] for each in given), f"--data {name}:{{}}")
        with naming(keys):
            raise


def _options_of(plugins: Plugins, name: str, given: Iterable[str], words: str) -> dict[str, str]:
    """How to set each option of a plugin, and each given one, in words; only the given ones for an unknown plugin."""
    try:
        known = [*plugins.parameters(name), *given]
    except UserError:
        known = [*given]
    return {f"{plugins.kind}.{key}": words.format(key) for key in known}


NOT_TRAINED = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)
"""What a model raises on inputs that are not its own."""


def images(batch_size: int, image_size: int = IMAGE_SIZE, num_classes: int = CLASSES) -> Inputs:
    """Square images of 3 channels; UserError for a size that no batch of images has."""
    for option, value, least in (("batch", batch_size, 1), ("image-size", image_size, 1), ("classes", num_classes, 2)):
        if value < least:
            raise UserError(f"--{option}: needs at least {least}, got {value}")
    shape = (3, image_size, image_size)
    words = f"3x{image_size}x{image_size}, {num_classes} classes"
    return Inputs((batch_size, *shape), torch.float32, (batch_size,), num_classes, shape, words)


def samples(named: str, batch_size: int, context: Any = None) -> Inputs:
    """Samples of a data set, `name:key=value`; UserError for one that does not exist or cannot be read.

    context  of a language model that was given one: its sequences are as long, where the data set has a length
    """
    if batch_size < 1:
        raise UserError(f"--batch: needs at least 1, got {batch_size}")
    try:
        name, options = plugin_of(named)
    except ValueError as error:
        raise UserError(f"--data: {error}") from error
    if context is not None and "length" in data.PLUGINS.parameters(name):
        if options.setdefault("length", context) != context:
            raise UserError(
                f"--option: context={context} is not the length={options['length']} of --data; leave one of them out"
            )
        named = ":".join((name, *(f"{key}={value}" for key, value in options.items())))
    data.PLUGINS.check(name, {key: options[key] for key in options.keys() - {"root"}}, in_config=False)
    dataset = data.build(name, **options)
    inputs, labels = probe_batch(dataset, 1, torch.device("cpu"))
    shape = "x".join(map(str, dataset.image_shape)) or named
    tokens = math.prod(labels.shape[1:]) * batch_size
    words = f"{shape}, {dataset.num_classes} classes" + (f", {tokens:,} tokens a step" if labels.dim() > 1 else "")
    return Inputs(
        (batch_size, *inputs.shape[1:]), inputs.dtype, (batch_size, *labels.shape[1:]), dataset.num_classes,
        tuple(dataset.image_shape), words, unit_of(dataset), dataset,
    )  # fmt: skip


def chosen(
    name: str | None, batch_size: int, image_size: int | None, classes: int | None, options: dict[str, Any]
) -> Inputs:
    """What --data, --batch, --image-size and --classes name, None for one that was left out; `options` of the model."""
    if name is None:
        pixels = IMAGE_SIZE if image_size is None else image_size
        return images(batch_size, pixels, CLASSES if classes is None else classes)
    for option, given in (("image-size", image_size), ("classes", classes)):
        if given is not None:
            raise UserError(f"--{option}: goes without --data, which says it already")
    return samples(name, batch_size, options.get("context"))
