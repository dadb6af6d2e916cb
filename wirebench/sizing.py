"""What a compressor would ask the network for, without a network: its own generator, advanced with made-up answers.

Where the layers' shapes decide, tensors have no data (PyTorch's meta device), and the sizes are exact. Else the
gradient is noise, as a replayed model's, and what is asked for is known at powers of four, and on lines in between.
"""

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wirebench.lane import Exchanger
from wirebench.layout import Bucket, Layer
from wirebench.requests import Answer, Gather, Merge, Request, Route, handed_over
from wirebench.seeding import generator
from wirebench.world import World

SAMPLE = 1 << 16
GRADIENT_DEVIATION, PARAMETER_DEVIATION = 1e-4, 0.05
"""Those of a replayed model (models/replay.py)."""
FEW, MOST_TRIED = 2, 64
"""Ranks of the world in which requests are counted: how many there are does not depend on it."""


META, CPU = torch.device("meta"), torch.device("cpu")

Shapes = tuple[tuple[int, int, int], ...]
"""Of a bucket's layers: elements, dimensions, rows."""


class Asked(NamedTuple):
    """One request of a rank: its kind, and the bytes that it hands over (of a route: to all ranks together)."""

    kind: type[Request]
    num_bytes: float


class Sizes:
    """What one compressor asks for in a world of `size`, by the bucket; `make` makes a compressor."""

    def __init__(self, make: Any, size: int) -> None:
        self.make, self.size = make, size
        self._known: dict[Shapes, list[Asked]] = {}

    def of(self, layers: Sequence[Layer]) -> list[Asked]:
        """The requests of one exchange of neighbouring layers, by one rank."""
        shapes = tuple((layer.numel, layer.ndim, layer.rows) for layer in layers)
        return self._once(shapes, META) if self._shaped else self._between(sum(numel for numel, _, _ in shapes))

    @cached_property
    def _shaped(self) -> bool:
        """Whether layers of one size but other shapes ask for something else, as with matrices of low rank."""
        try:
            one, other = (self._once(((SAMPLE, 2, rows),), META) for rows in (1, 256))
        except Exception:  # whatever a method does that wants to see what it sends
            return False
        return one != other

    @cached_property
    def by_value(self) -> bool:
        """Whether it matters how large the gradient is: then noise says nothing of what real gradients would cost."""
        shapes = ((SAMPLE, 2, 256),)
        one, other = (_asked(self.make, shapes, self.size, CPU, scale) for scale in (1.0, 1000.0))
        return one != other

    def _between(self, numel: int) -> list[Asked]:
        """On a line through two sizes of a single layer that were tried; beyond SAMPLE in proportion."""
        if numel >= SAMPLE:
            return [Asked(kind, numel / SAMPLE * num_bytes) for kind, num_bytes in self._of_numel(SAMPLE)]
        low = 1 << 2 * ((max(numel, 1).bit_length() - 1) // 2)
        share = (numel / low - 1) / 3
        pairs = zip(self._of_numel(low), self._of_numel(4 * low), strict=True)
        return [Asked(one.kind, (1 - share) * one.num_bytes + share * other.num_bytes) for one, other in pairs]

    def _of_numel(self, numel: int) -> list[Asked]:
        rows = 1 << (numel.bit_length() // 2)
        return self._once(((numel, 2, min(rows, numel)),), CPU)

    def _once(self, shapes: Shapes, device: torch.device) -> list[Asked]:
        if shapes not in self._known:
            self._known[shapes] = _asked(self.make, shapes, self.size, device)
        return self._known[shapes]


def _asked(make: Any, shapes: Shapes, size: int, device: torch.device, scale: float = 1.0) -> list[Asked]:
    """Advance to the last request of a world of `size`; what is done with its answer is not waited for.

    By the first rank that has something to say: where some vote, the others hand over a byte or nothing.
    """
    # Answers of thousands of ranks are not worth reading after the last request.
    count = len(_talking(make, shapes, FEW, device, scale, None))
    return _talking(make, shapes, size, device, scale, count)


def _talking(make: Any, shapes: Shapes, size: int, device: torch.device, scale: float, most: int | None) -> list[Asked]:
    asked: list[Asked] = []
    for rank in range(min(size, MOST_TRIED)):
        asked = _advance(make(), _bucket(shapes, device, scale), rank, size, most)
        if not asked or asked[0].num_bytes > 1:
            break
    return asked


def _advance(compressor: Exchanger, bucket: Bucket, rank: int, size: int, most: int | None) -> list[Asked]:
    exchange = compressor.exchange(bucket, World(rank, size))
    asked: list[Asked] = []
    answer: Answer = None
    with torch.no_grad():
        while most is None or len(asked) < most:
            try:
                request = exchange.send(answer)
            except StopIteration:
                break
            asked.append(Asked(type(request), float(sum(tensor.nbytes for tensor in handed_over(request)))))
            answer = _answer(request, rank, size)
    return asked


def _answer(request: Request, rank: int, size: int) -> Answer:
    """As if all ranks had brought the same."""
    if isinstance(request, Gather):
        return [request.tensor] * size
    if isinstance(request, Route):
        return [request.parts[rank]] * size
    return request.message if isinstance(request, Merge) else request.tensor


def _bucket(shapes: Shapes, device: torch.device, scale: float) -> Bucket:
    layers, start = [], 0
    for number, (numel, ndim, rows) in enumerate(shapes):
        layers.append(Layer(f"layer{number}", start, start + numel, ndim, rows))
        start += numel
    if device.type == "meta":
        grad = torch.empty(start, device=device)
        return Bucket(0, grad, torch.empty_like(grad), tuple(layers), tuple(layers))
    noise, weights = _noise(SAMPLE), _noise(SAMPLE + 1)
    grad, param = scale * GRADIENT_DEVIATION * noise[:start], PARAMETER_DEVIATION * weights[:start]
    return Bucket(0, grad, param, tuple(layers), tuple(layers))


@lru_cache(maxsize=4)
def _noise(numel: int) -> Tensor:
    return torch.randn(numel, generator=generator("sizing", numel))
