"""FetchSGD: momentum and error feedback live inside the summed Count-Sketch; no rank remembers anything of its own.

Rothchild et al., "FetchSGD: Communication-Efficient Federated Learning with Sketching", ICML 2020, arXiv 2007.07682,
Algorithm 1. S is the sum of the ranks' sketches; u <- m u + S, e <- e + u. The update is the k largest estimates of e,
which then leave e. There is no exact round: estimates are applied. The learning rate comes later, in the optimizer, so
it also multiplies the residual e. The paper multiplies u by it.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from wirebench.compressors.common.feedback import Feedback, decayed
from wirebench.compressors.sketch.base import DENSITY, Sketched
from wirebench.compressors.sketch.count_sketch import CountSketch, Hash
from wirebench.compressors.sketch.heavy_hitters import largest
from wirebench.compressors.sparse.places import write_average
from wirebench.compressors.sparse.selection import top_k
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Keeps
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Sum

VELOCITY, ERROR = "momentum", "error"


class FetchSgd(Sketched):
    """The k largest estimates of a sketch that holds the momentum and what was not applied yet, the same on all ranks.

    density    share of the entries to apply, at least one
    k          entries to apply, in place of density (not of a warm-up's); 0: density counts. Of the two one is given
    rows       of the table: odd, at most 15
    columns    of the table; 0: columns_per_entry k
    ratio      columns as a share of the entries, in place of columns
    columns_per_entry  columns for each of the k entries, where neither of these is given; the released code's are 10
    hash       `block` shifts, or the `reference` polynomials (count_sketch.py)
    momentum   m of u
    clear      what leaves the memory: the `cells` of e and u that the update has touched become 0 (the released code),
               or the update's sketch is taken from e (`subtract`, the paper). An update that is all noise adds to e
               what it subtracts, so the latter needs a wide table: with 4 k columns it diverges, with 33 k it does not

    The residual is kept as a sketch, not entry by entry. With clear = subtract the sketch holds exactly what was added
    less what was applied. If the table is no smaller than the model, the vector replaces it. When the table's size
    changes, as after a warm-up, the memory starts empty.

    Memory: two tables, 1 d at the default sizes, the hash, 0.1 d; while it works another table, 0.5 d, and its cells'
    codes, 0.25 d (on a GPU all estimates, 1 d).
    """

    keeps: Keeps = "sketched"
    collective = "star"
    columns_each = 10.0
    whole_model = "its memory is one sketch of the whole model"
    uncaptured = ""

    def __init__(
        self,
        density: float = DENSITY,
        k: int = 0,
        rows: int = 5,
        columns: int = 0,
        ratio: float = 0.0,
        columns_per_entry: float = 10.0,
        hash: Hash = "block",
        momentum: float = 0.9,
        clear: Literal["cells", "subtract"] = "cells",
    ) -> None:
        super().__init__(density, k, rows, columns, ratio, columns_per_entry, hash)
        self.clear = clear
        if hash == "reference":
            self.uncaptured = "hash = reference reads numbers on the host, hash = block does not"
        if clear == "subtract":
            self.bounded_by = "columns"
        self.memory = Feedback(momentum)  # stays empty; it tells the wrappers what momentum dense layers get
        self.momentum, self.owns_momentum = momentum, momentum > 0

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One sum of sketches."""
        dense = self.goes_dense(bucket)
        with phase("select"):
            sketch = None if dense else self.sketch_of(bucket, world)
            table = sketch.sketch(bucket.grad) if sketch else bucket.narrow(bucket.grad.clone())
        table = yield Sum(table)
        with phase("update"):
            table = table.to(bucket.grad.dtype)
            velocity = decayed(self._held(VELOCITY, bucket, table), self.momentum, table)
            waiting = self._held(ERROR, bucket, table).add_(velocity)
        k = self.entries(bucket.numel, self.model_numel(bucket))
        if sketch and (hash := sketch.kernels_hash(waiting)) is not None:
            with phase("decode"):
                return self._apply(bucket.grad, waiting, velocity, sketch, hash, k, world.size)
        if not bool(waiting.isfinite().all()):
            return bucket.grad.fill_(math.nan)
        with phase("select"):
            index = largest(sketch, waiting, k) if sketch else top_k(waiting, k)
            update = sketch.estimate(waiting, index) if sketch else waiting.index_select(0, index)
        with phase("encode"):
            if self.clear == "subtract":
                applied = write_average(bucket.grad, index, update.clone(), 1)
                waiting.sub_(sketch.sketch(applied) if sketch else applied)
            else:
                _clear_cells(sketch, index, velocity, waiting)
        with phase("decode"):
            return write_average(bucket.grad, index, update, world.size)

    def _apply(
        self,
        grad: Tensor,
        waiting: Tensor,
        velocity: Tensor,
        sketch: CountSketch,
        hash: tuple[Tensor, Tensor, Tensor],
        k: int,
        size: int,
    ) -> Tensor:
        """What follows the sum, by kernels: a table that is not finite shows in `grad`, and the host need not wait."""
        from wirebench.compressors.kernels.sketches import apply

        gaps = sketch.places.gaps
        if self.clear == "cells":
            apply(waiting, hash, grad, gaps, k, size, velocity)
            return grad
        apply(waiting, hash, grad, gaps, k, 1, None)
        waiting.sub_(sketch.sketch(grad))
        return grad.div_(size)

    def unsent(self, numel: int) -> Tensor | None:
        """See Method.unsent: a row of the sketch; the mean of its squared norm over hashes is the vector's."""
        held = [table for name, table in self.shared.items() if name.startswith(f"{ERROR}.")]
        return torch.cat([table[0] if table.dim() > 1 else table for table in held]) if held else None

    def take_over(self, states: Sequence[Mapping[str, Tensor]], joins: bool = False, weight: float = 1.0) -> None:
        """See Method.take_over; the tables are sums over ranks, so they are weighted too."""
        super().take_over(states, joins, weight)
        for table in self.shared.values():
            table.mul_(weight)

    def wire_bytes(self, numel: int, size: int) -> int:
        """The table."""
        return self.bytes_of(numel)

    def _held(self, name: str, bucket: Bucket, like: Tensor) -> Tensor:
        """The shared memory `name` of this bucket, shaped like the table `like`; zeros at first."""
        key = f"{name}.{bucket.start}"
        held = self.shared.get(key)
        if held is None or held.shape != like.shape:
            held = torch.zeros_like(like)
        self.shared[key] = held = held.to(like.device)  # checkpoints are read to the CPU
        return held


def _clear_cells(sketch: CountSketch | None, index: Tensor, *held: Tensor) -> None:
    """Set to 0 what these tables, or vectors without a sketch, hold for the elements `index`."""
    if sketch is None:
        for vector in held:
            vector.index_fill_(0, index, 0)
        return
    for row, (cell, _) in enumerate(sketch.hash.cells(index)):
        for table in held:
            table[row].index_fill_(0, cell, 0)
