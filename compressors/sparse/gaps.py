"""Gaps between the layers of a bucket (wrappers.DenseBelow): places that hold 0 and are never to be chosen.

A selection by magnitude never chooses a 0. One that draws places, or estimates them from a sketch, must know the gaps.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from wirebench.gradient.flat import Bucket, Layer
from wirebench.utils.device_tables import device_table


class Places:
    """The places of a bucket that its layers cover, in order; all of them, where there is no gap.

    numel  how many they are
    """

    def __init__(self, layers: Sequence[Layer], device: torch.device) -> None:
        self._layers = tuple(layers)
        pieces = joined(layers, layers[0].start)
        lengths = [piece.stop - piece.start for piece in pieces]
        self.numel = sum(lengths)
        self.whole = len(pieces) == 1
        self.gaps = torch.empty(0, dtype=torch.int64, device=device)
        if self.whole:
            return
        self.gaps = torch.cat([torch.arange(a.stop, b.start) for a, b in pairwise(pieces)]).to(device)
        self._starts = torch.tensor([piece.start for piece in pieces], device=device)
        self._stops = torch.tensor([piece.stop for piece in pieces], device=device)
        self._ranks = torch.tensor([0, *accumulate(lengths[:-1])], device=device)

    def on(self, device: torch.device) -> "Places":
        """The same places, with tables on a device."""
        return _places(self._layers, device)

    def at(self, ranks: Tensor) -> Tensor:
        """The places of these ranks, int64: rank 0 is the first place."""
        if self.whole:
            return ranks
        piece = torch.searchsorted(self._ranks, ranks, right=True).sub_(1)
        return ranks + (self._starts - self._ranks).index_select(0, piece)

    def without_gaps(self, index: Tensor) -> Tensor:
        """The places among `index`, int64 and of the bucket, that lie in no gap."""
        if self.whole:
            return index
        piece = torch.searchsorted(self._starts, index, right=True).sub_(1)
        return index[index < self._stops.index_select(0, piece)]

    def ranks(self, index: Tensor) -> Tensor:
        """The ranks of the places `index`, which lie in no gap."""
        if self.whole:
            return index
        piece = torch.searchsorted(self._starts, index, right=True).sub_(1)
        return index - (self._starts - self._ranks).index_select(0, piece)


def places_of(bucket: Bucket, device: torch.device | None = None) -> Places:
    """The places of the bucket's layers, on a device, by default its own."""
    return _places(bucket.layers, device or bucket.grad.device)


@device_table()
def _places(layers: tuple[Layer, ...], device: torch.device) -> Places:
    return Places(layers, device)


def joined(layers: Sequence[Layer], start: int) -> list[slice]:
    """The places of `layers`, counted from `start`; neighbours as one."""
    pieces: list[slice] = []
    for layer in layers:
        here = slice(layer.start - start, layer.stop - start)
        if pieces and pieces[-1].stop == here.start:
            here = slice(pieces.pop().start, here.stop)
        pieces.append(here)
    return pieces
