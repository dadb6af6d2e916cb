"""Play the exchanges of all compressors, and write how large their requests are, for wirebench/planner/data.

python scripts/request_sizes.py

It takes a few minutes, and is due after a change of a compressor's messages, and for a new compressor.
`pytest tests/planner/test_known_sizes.py` plays a part of the file again, and with `-m slow` all of it.
"""

import functools
import sys
from collections.abc import Iterator
from typing import Any

import torch

from wirebench import compressors, models
from wirebench.gradient.flat import Layer
from wirebench.planner import known, known_sizes
from wirebench.planner.compositions import density_of, own_density
from wirebench.simulation.trace import SHIPPED, load
from wirebench.utils import user_files

LARGE_IMAGES, SMALL_IMAGES, BYTES = (1000, (3, 224, 224)), (10, (3, 32, 32)), (256, ())
MODELS: tuple[tuple[str, tuple[int, tuple[int, ...]], dict[str, Any]], ...] = (
    *((name, LARGE_IMAGES, {}) for name in ("alexnet", "googlenet", "resnet18", "resnet101", "resnet152", "vgg16")),
    *((name, SMALL_IMAGES, {}) for name in ("lenet", "resnet_cifar", "resnet101_cifar", "vgg_cifar", "toy")),
    ("gpt", BYTES, {}),
    ("gpt", BYTES, {"width": 768, "heads": 12, "context": 512}),
)
"""Names, classes and shapes of images, options; others are in configs/traces."""
TRAINED_ON = (10**5, 10**7)
"""Elements of models whose nearest trained ones have all densities that methods were trained with."""


def main() -> int:
    """Play, and write the file."""
    layers = list(_layers())
    sizes = {}
    for name, density in _asked():
        print(f"{name} {density or ''}", file=sys.stderr, flush=True)
        make = functools.partial(compressors.build, name, **density_of(name, density))
        sizes[name, density] = known_sizes.played(make, layers)
    user_files.write(known_sizes.PATH, known_sizes.written(sizes))
    return 0


def _asked() -> list[tuple[str, float | None]]:
    """All compressors with the densities that they have by themselves and were trained with."""
    trained = [known.load(images, numel).known for images in (True, False) for numel in TRAINED_ON]
    densities = {(name, own_density(name)) for name in compressors.available()}
    densities |= {
        (name, each.density) for those in trained for name, each in those.items() if own_density(name) and each.density
    }
    return sorted(densities, key=str)


def _layers() -> Iterator[Layer]:
    """One layer of each shape that the suite's models have, and of sizes between which others lie."""
    shapes: set[tuple[int, ...]] = {(4**power,) for power in range(9)}
    for path in SHIPPED.glob("*.json"):
        shapes |= {layer.shape for layer in load(path).layers if layer.shape}
    for name, (classes, image_shape), options in MODELS:
        with torch.device("meta"):
            shapes |= {tuple(each.shape) for each in models.build(name, classes, image_shape, **options).parameters()}
    for shape in sorted(shapes):
        yield Layer("", 0, torch.Size(shape).numel(), len(shape), shape[0])


if __name__ == "__main__":
    sys.exit(main())
