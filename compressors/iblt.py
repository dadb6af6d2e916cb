"""Top-k whose entries are summed in an invertible Bloom look-up table, from which every rank reads the sum's support.

Each rank offers its k largest entries; tables add up, so any all-reduce serves, and a message is as long with a hundred
ranks as with two. Peeling (compressors/sketch/peeling.py; Goodrich and Mitzenmacher, arXiv 1101.2245) reads all entries
again: the average equals `topk`'s, up to the rounding of fp32 sums. Our own composition of the two;
docs/compressors.md says when it pays.
"""

import math

import torch

from wirebench.compressors.sketch.peeling import LOAD, ROWS, Dense, LookupTable, key_bytes
from wirebench.compressors.sparse.base import Sparse
from wirebench.compressors.sparse.places import write_average
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Sum
from wirebench.utils.rng import seed_of

VALUE_BYTES = 4
ROOM, GROWTH = 1.4, 0.77
"""Different entries that ranks choose, in units of k: ROOM P^GROWTH. A fifth more than a ResNet-8's in 120 steps."""


class Iblt(Sparse):
    """The entries that any rank offers, k from each, with their sums; the rest stays in the residual.

    density  share of a bucket's entries that a rank offers, at least one
    room     different entries that a table holds, in units of k; 0: 1.4 P^0.77, at most P, for P ranks: a fifth more
             than was measured (docs/sketches.md). Ranks whose choices have nothing in common offer P k. If the table
             holds fewer entries, peeling stalls. Then the entries that it has shown and the k largest estimates of the
             others are summed in a further round, and the rest stays in the residual

    A bucket whose table would not be smaller than itself goes dense. The hashes are new in every step, so that no
    entries collide twice.

    Memory: the residual, 1 d; the table, 10.4 room k bytes (15.6 with the longer keys of many ranks); on a GPU what
    peeling finds, by place, 2 d.
    Measures: read, the different entries that peeling has shown; stalled, the share of buckets where more were left.
    """

    collective = "tree"
    uncaptured = "the lengths of its messages depend on values"

    def __init__(self, density: float = 0.001, room: float = 0.0) -> None:
        super().__init__(density, "fp32", "int32")
        if room < 0:
            raise ValueError(f"room is positive, or 0 where the ranks decide, got {room}")
        self.room = room

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """A sum of tables and one of their keys; where peeling stalls, one of the places that were found."""
        grad, k = bucket.grad, self.count(bucket.numel)
        with phase("update"):
            waiting = self.feedback.accumulate(bucket, world)
        if self.is_dense(bucket.numel, world.size, bucket.wire_dtype.itemsize if bucket.wire_dtype else VALUE_BYTES):
            return (yield from self.feedback.exchange_all(bucket, world))
        with phase("encode"):
            seed = seed_of("look-up table", world.seed, world.step, bucket.start)
            codec = LookupTable(grad.numel(), self.columns(bucket.numel, world.size), world.size, seed, grad.device)
        with phase("select"):
            sent, table, keys = codec.fill_largest(waiting, k)
        table = yield Sum(table)
        keys = yield Sum(keys, values=0)
        with phase("decode"):
            dense, left = codec.peel_at_once(table, keys), True
            if dense is not None:
                infinite, left, _ = map(bool, dense.state.tolist())
            else:
                infinite = not bool(table.isfinite().all())
            if infinite:
                return grad.fill_(math.nan)
            if dense is not None and not left and not world.measuring:
                return dense.write(grad, world.size, waiting, sent)
        if dense is not None and not world.measuring:
            return (yield from self._stalled(bucket, world, codec, dense))
        with phase("decode"):
            peeled = codec.peel(table, keys) if dense is None else dense.listed(complete=not left)
            if world.measuring:
                self.measures.ratio("stalled", float(not peeled.complete), 1.0)
                self.measures.total("read", peeled.index.numel())
            if peeled.complete:
                self.feedback.sent(bucket, sent.listed())
                return write_average(grad, peeled.index, peeled.sums, world.size)
            places = torch.cat([peeled.index, codec.largest(peeled.rest, k)]).unique()
        total = yield Sum(bucket.narrow(waiting.index_select(0, places)))
        with phase("decode"):
            self.feedback.sent_narrow(bucket, places)
            return write_average(grad, places, total, world.size)

    def _stalled(self, bucket: Bucket, world: ExchangeContext, codec: LookupTable, dense: Dense) -> Exchange:
        """By kernels, the round that follows where peeling has left something in the table."""
        from wirebench.compressors.kernels import votes

        grad, waiting = bucket.grad, self.feedback.slice(bucket)
        with phase("decode"):
            found = codec.candidates(dense, self.count(bucket.numel))
            many = int(found.counts.cpu().numpy().sum())  # the host waits, since this is the next message's length
            values = votes.take(waiting, None, found, many, bucket.wire_dtype is not None)
        total = yield Sum(bucket.narrow(values))
        with phase("decode"):
            votes.write(grad, found, total.to(grad.dtype), world.size)
        return grad

    def columns(self, numel: int, size: int) -> int:
        """Columns of the table of a bucket of `numel` elements, for `size` ranks."""
        room = self.room or min(ROOM * size**GROWTH, size)
        return math.ceil(room * self.count(numel) / (LOAD * ROWS)) + 2

    def is_dense(self, numel: int, size: int, value_bytes: int = VALUE_BYTES) -> bool:
        """Whether a table is no smaller than a bucket of `numel` elements of `value_bytes` bytes each."""
        return self._table_bytes(numel, size) >= value_bytes * numel

    def wire_bytes(self, numel: int, size: int) -> int:
        """A value and a key for each cell; a dense bucket's values."""
        return VALUE_BYTES * numel if self.is_dense(numel, size) else self._table_bytes(numel, size)

    def _table_bytes(self, numel: int, size: int) -> int:
        columns = self.columns(numel, size)
        return (VALUE_BYTES + key_bytes(numel, columns, size)) * ROWS * columns
