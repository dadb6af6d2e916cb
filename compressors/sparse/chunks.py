"""A bucket's layers cut into chunks of neighbours, from each of which the largest entries are chosen."""

from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.gradient.flat import Bucket


class Chunks(NamedTuple):
    """How a bucket is cut. A chunk lies within a layer; the last of a layer may be shorter.

    size, k  entries of a whole chunk, and how many of them are chosen; of a shorter one in proportion, at least one
    spans    by layer (first place in the bucket, places, first row): its chunks are rows of a matrix
    starts   by chunk, int64 (chunks,): its first place in the bucket
    counts   by chunk, int64 (chunks,): entries to choose
    layers   by chosen entry, int64 (total,): its layer's number
    chunk    by chosen entry, int64 (total,): its chunk's number
    total    entries that are chosen
    """

    size: int
    k: int
    spans: tuple[tuple[int, int, int], ...]
    starts: Tensor
    counts: Tensor
    layers: Tensor
    chunk: Tensor
    total: int

    def choose(self, values: Tensor) -> Tensor:
        """The largest of each chunk by magnitude, NaN first: places within their chunks, int64 (total,)."""
        rows = values.new_full((len(self.starts), self.size), -1.0)
        for begin, places, first in self.spans:
            flat = rows[first : first - (-places // self.size)].view(-1)
            torch.abs(values[begin : begin + places], out=flat[:places])
        # Magnitudes are in the order of their bits, which are compared faster; -1.0 is a negative number there, too.
        found = rows.view(torch.int32).topk(self.k, dim=1).indices
        chosen = torch.arange(self.k, device=values.device) < self.counts[:, None]
        return found[chosen]

    def places(self, within: Tensor) -> Tensor:
        """Places in the bucket of entries that are named by their places within their chunks."""
        return self.starts[self.chunk] + within


def chunks_of(bucket: Bucket, size: int, k: int) -> Chunks:
    """The bucket's chunks, on its device."""
    sizes = tuple((layer.start - bucket.start, layer.numel) for layer in bucket.layers)
    return _chunks(sizes, size, k, bucket.grad.device)


@lru_cache(maxsize=1024)
def _chunks(sizes: tuple[tuple[int, int], ...], size: int, k: int, device: torch.device) -> Chunks:
    spans: list[tuple[int, int, int]] = []
    starts: list[int] = []
    counts: list[int] = []
    layers: list[int] = []
    for number, (begin, numel) in enumerate(sizes):
        spans.append((begin, numel, len(starts)))
        for offset in range(0, numel, size):
            starts.append(begin + offset)
            counts.append(-(-min(size, numel - offset) * k // size))
            layers.append(number)
    first, count, layer = (torch.tensor(each, device=device) for each in (starts, counts, layers))
    chunk = torch.repeat_interleave(torch.arange(len(starts), device=device), count)
    return Chunks(size, k, tuple(spans), first, count, layer[chunk], chunk, sum(counts))
