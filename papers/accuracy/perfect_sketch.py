"""An oracle in the place of the sketch: the sum itself, dense, so that nothing is estimated and no two entries collide.

python train.py CONFIG.toml compressor.name=papers.accuracy.perfect_sketch compressor.fill=estimate

With fill = estimate it is the top-k of the sum, the bound of what any sketch can reach; with fill = random it is
HEAVYMIX's rule alone. What a method loses against it, the sketch loses; what it loses against top-k, the rule loses.
It saves no bytes.
"""

import math

import torch
from torch import Tensor

from wirebench.compressors.gs_sgd import GsSgd
from wirebench.compressors.sketch.base import BYTES_PER_FLOAT
from wirebench.compressors.sparse.gaps import Places, places_of
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.flat import Bucket


class PerfectSketch(GsSgd):
    """gs-SGD with one row and a cell for every entry as its table; takes its options, goes dense where it does."""

    def sketch_of(self, bucket: Bucket, world: ExchangeContext) -> "_ExactTable":  # type: ignore[override]
        """The vector itself."""
        return _ExactTable(places_of(bucket), bucket.grad.numel())

    def bytes_of(self, numel: int) -> int:
        """The dense bucket, and the values."""
        values = self.values_per_entry * self.entries(numel, max(self._model_numel, numel))
        return BYTES_PER_FLOAT * (numel + values)


class _ExactTable:
    """What HEAVYMIX asks of a sketch, answered by a table of shape (1, numel) that is the vector."""

    def __init__(self, places: Places, numel: int) -> None:
        self.places, self.numel = places, numel
        self.rows, self.columns = 1, numel

    def sketch(self, x: Tensor) -> Tensor:
        """The vector."""
        return x.clone()[None]

    def sketch_entries(self, index: Tensor, values: Tensor) -> Tensor:
        """The vector that is 0 but at the places `index`."""
        return values.new_zeros(1, self.numel).index_copy_(1, index, values[None])

    def estimate(self, table: Tensor, index: Tensor) -> Tensor:
        """The elements `index`."""
        return table[0].index_select(0, index)

    def estimates(self, table: Tensor) -> Tensor:
        """The vector."""
        return table[0]

    def l2sq(self, table: Tensor) -> float:
        """The squared norm; NaN where an element is not finite."""
        square = table.double().square().sum().item()
        return square if math.isfinite(square) else math.nan

    def find(self, table: Tensor, k: int, values: Tensor | None = None) -> None:
        """No kernel finds the largest at once."""

    def reaching(self, table: Tensor, threshold: float) -> Tensor:
        """Places, ascending, of the elements of at least this magnitude."""
        return self.places.without_gaps(torch.nonzero(table[0].abs() >= threshold).squeeze(1))
