"""A bucket's layers cut into chunks of neighbours, from each of which the largest entries are chosen."""

from itertools import accumulate, groupby
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.gradient.flat import Bucket
from wirebench.utils.device_tables import device_table

BLOCK = 64
"""Chunks whose sums are added at once, on a GPU, before the blocks of a layer are added one by one."""


class Chunks(NamedTuple):
    """How a bucket is cut. A chunk lies within a layer; the last of a layer may be shorter.

    size, k  entries of a whole chunk, and how many of them are chosen; of a shorter one in proportion, at least one
    spans    by layer (first place in the bucket, places, first row): its chunks are rows of a matrix
    starts   by chunk, int64 (chunks,): its first place in the bucket
    lengths  by chunk, int64 (chunks,): entries that it has
    picked   by chosen entry, int64 (total,): its place among the k largest of all chunks
    layers   by chosen entry, int64 (total,): its layer's number
    chunk    by chosen entry, int64 (total,): its chunk's number
    sizes    by layer, int64 (layers,): entries that are chosen of it
    blocks   int64 (blocks, BLOCK): numbers of a layer's chunks, as many at a time; filled up with one that there is not
    cuts     by layer, int64 (layers + 1,): its first block; and how many there are
    firsts   by chunk, int64 (chunks + 1,): entries that are chosen of the chunks before it
    rows     by layer, int64 (layers + 1,): its first chunk
    total    entries that are chosen
    """

    size: int
    k: int
    spans: tuple[tuple[int, int, int], ...]
    starts: Tensor
    lengths: Tensor
    picked: Tensor
    layers: Tensor
    chunk: Tensor
    sizes: Tensor
    blocks: Tensor
    cuts: Tensor
    firsts: Tensor
    rows: Tensor
    total: int

    def choose(self, values: Tensor) -> Tensor:
        """The largest of each chunk by magnitude, NaN first: places within their chunks, int64 (total,)."""
        if kernels.usable(values):
            from wirebench.compressors.kernels.chunks import choose

            return choose(values, self.starts, self.lengths, self.firsts, self.size, self.total)
        rows = self._copied(values)
        # Magnitudes are in the order of their bits, which are compared faster; -1.0 is a negative number there, too.
        return rows.view(torch.int32).topk(self.k, dim=1).indices.view(-1).index_select(0, self.picked)

    def sums(self, numbers: Tensor, bins: Tensor, count: int) -> Tensor:
        """For each layer and bin, (layers x count,), the sum of the chosen entries' `numbers` in this bin.

        On a GPU additions to one place come in any order, and sums differ from run to run: there they are reductions.
        """
        if numbers.is_cuda:
            return self._reduced(numbers, bins, count)
        cells = self.layers * count + bins
        return numbers.new_zeros(len(self.spans) * count).index_add_(0, cells, numbers)

    def _reduced(self, numbers: Tensor, bins: Tensor, count: int) -> Tensor:
        """Within each chunk, then within blocks of chunks, then over a layer's blocks."""
        entries = torch.where(bins[:, None] == torch.arange(count, device=bins.device), numbers[:, None], 0.0)
        chunks = len(self.starts)
        table = numbers.new_zeros((chunks + 1) * self.k, count).index_copy_(0, self.picked, entries)
        by_chunk = table.view(chunks + 1, self.k, count).sum(1)
        by_block = by_chunk.index_select(0, self.blocks.view(-1)).view(-1, BLOCK, count).sum(1)
        return torch.segment_reduce(by_block, "sum", offsets=self.cuts, unsafe=True).flatten()

    def _copied(self, values: Tensor) -> Tensor:
        """Magnitudes, a row for each chunk, -1 where it is shorter: layer by layer, a copy each."""
        rows = values.new_full((len(self.starts), self.size), -1.0)
        for begin, places, first in self.spans:
            flat = rows[first : first - (-places // self.size)].view(-1)
            torch.abs(values[begin : begin + places], out=flat[:places])
        return rows

    def places(self, within: Tensor) -> Tensor:
        """Places in the bucket of entries that are named by their places within their chunks."""
        return self.starts[self.chunk] + within


def chunks_of(bucket: Bucket, size: int, k: int) -> Chunks:
    """The bucket's chunks, on its device."""
    sizes = tuple((layer.start - bucket.start, layer.numel) for layer in bucket.layers)
    return _chunks(sizes, size, k, bucket.grad.device)


@device_table()
def _chunks(sizes: tuple[tuple[int, int], ...], size: int, k: int, device: torch.device) -> Chunks:
    spans: list[tuple[int, int, int]] = []
    starts: list[int] = []
    lengths: list[int] = []
    counts: list[int] = []
    layers: list[int] = []
    for number, (begin, numel) in enumerate(sizes):
        spans.append((begin, numel, len(starts)))
        for offset in range(0, numel, size):
            starts.append(begin + offset)
            lengths.append(min(size, numel - offset))
            counts.append(-(-lengths[-1] * k // size))
            layers.append(number)
    count = torch.tensor(counts)
    chunk = torch.repeat_interleave(torch.arange(len(starts)), count)
    layer = torch.tensor(layers)[chunk]
    picked = torch.nonzero((torch.arange(k) < count[:, None]).view(-1)).squeeze(1)
    firsts = torch.tensor([0, *accumulate(counts)])
    made = (torch.tensor(starts), torch.tensor(lengths), picked, layer, chunk, torch.bincount(layer))
    first, length, picked, layer, chunk, chosen = (each.to(device) for each in made)
    blocks, cuts = (each.to(device) for each in _blocks(layers))
    rows = torch.tensor([*(row for _, _, row in spans), len(starts)]).to(device)
    return Chunks(
        size, k, tuple(spans), first, length, picked, layer, chunk, chosen, blocks, cuts, firsts.to(device), rows,
        sum(counts),
    )  # fmt: skip


def _blocks(layers: list[int]) -> tuple[Tensor, Tensor]:
    """`blocks` and `cuts` of chunks that lie in these layers."""
    of_layer = [list(group) for _, group in groupby(range(len(layers)), layers.__getitem__)]
    blocks = [chunks[at : at + BLOCK] for chunks in of_layer for at in range(0, len(chunks), BLOCK)]
    cuts = [0, *accumulate(-(-len(chunks) // BLOCK) for chunks in of_layer)]
    return torch.tensor([each + [len(layers)] * (BLOCK - len(each)) for each in blocks]), torch.tensor(cuts)
