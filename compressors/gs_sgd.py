"""gs-SGD: all ranks' Count-Sketches are summed; the sum shows which entries are large, and these are summed exactly.

Dai, Diao, Li and Xu, "A Distributed SGD Algorithm with Global Sketching for Deep Learning Training Acceleration", arXiv
2108.06004, Algorithm 1. Sketches add up, so it finds the large entries of the sum, which top-k methods never see. It
takes two rounds, both on a tree: a table, then the values of the chosen entries. The paper gives no sizes.

The paper's rule hardly learns at a density of 1 %, so the defaults are another rule, which does (docs/sketches.md). The
rule as printed is fill = random, p1 = 0, p2 = 1, broadcast = sketch, reseed = false:
configs/cifar10_resnet20_gs_sgd_literal.toml.
"""

import math
from collections.abc import Generator
from typing import Any, Literal

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.common.feedback import Feedback
from wirebench.compressors.sketch.base import DENSITY, Sketched
from wirebench.compressors.sketch.count_sketch import Agree, CountSketch, Hash
from wirebench.compressors.sketch.heavy_hitters import heavy, heavy_by_chance, heavymix, largest
from wirebench.compressors.sparse.encoding import Indices, SparseCode
from wirebench.compressors.sparse.places import write_average
from wirebench.compressors.sparse.selection import top_k
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Keeps
from wirebench.gradient.error_memory import VELOCITY
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather, Reduce, Request, Sum

HEAD_BYTES = 4
"""Head of the message of the rank that chooses: whether the sum is finite, and padding that aligns the code behind."""

SAMPLE = 4096
"""Places at which a measuring step compares estimates with sums."""


class GsSgd(Sketched):
    """The entries of the sum that a sketch calls heavy, k of them, with exact values; the rest is kept for later.

    density    share of a bucket's entries to send, at least one
    k          entries to send of the whole model, in place of density (not of a warm-up's); 0: density counts. Of the
               two one is given
    rows       of the table: odd, at most 15
    columns    of the table for the whole model; 0: columns_per_entry k
    ratio      columns as a share of a bucket's entries, in place of columns
    columns_per_entry  columns for each of the k entries, where neither of these is given
    fill       what joins the heavy entries where they are fewer than k: `random` ones (the paper; needs p2 = 1), or
               those with the next largest `estimate`s (the released Sketched-SGD)
    p2         with fill = estimate: p2 k entries are summed, of which the k largest sums are applied
    p1         a rank sketches only the p1 k entries of its memory that are largest (the released Sketched-SGD), so that
               the table holds P p1 k entries and not the noise of all; the rest waits. One rank alone sends about p1 k
               entries, half of k by default. 0: all entries (the paper)
    agree      what an estimate is: the median over rows (`majority`, the paper); or the smallest magnitude if `all` the
               rows have the same sign, which is sharper where p1 leaves many cells empty
    broadcast  `sketch`: every rank gets the sum of sketches and looks into it; `indices`: one rank does, and sends the
               others its choice. On a tree or a star the sum is then only reduced, and not broadcast; other collectives
               leave no rank with all of a sum half-way, and run all of it
    indices    how that choice is coded (encoding.py)
    hash       `block` shifts, or the `reference` polynomials (count_sketch.py)
    reseed     new hashes every step, so that no two entries share cells for the whole run
    momentum, nesterov, clip, masking  of the memory (feedback.py); momentum = 0: plain error feedback

    A bucket goes dense whose table and values would not be fewer than its elements, as in the paper's warm-up.

    Memory: residual and momentum, 2 d (1 d with momentum = 0); the hash, 0.04 d at the default sizes; while it
    works the table, 0.12 d, and its cells' codes, 0.06 d (on a GPU all estimates, 1 d).
    Measures: heavy, the entries above HEAVYMIX's threshold; heavy_by_chance, how many a vector without any would show
    (with p1 = 0); chosen; and at 4096 places, for one more sum: recall, the share of the sum's largest entries that
    were chosen; sketch_error, the norm of the estimates' errors over the norm of the sums.
    """

    keeps: Keeps = "exactly"
    collective = "tree"
    uncaptured = "the lengths of its messages depend on values"
    columns_each = 4.0

    def __init__(
        self,
        density: float = DENSITY,
        k: int = 0,
        rows: int = 3,
        columns: int = 0,
        ratio: float = 0.0,
        columns_per_entry: float = 4.0,
        fill: Literal["random", "estimate"] = "estimate",
        p2: int = 4,
        p1: float = 0.5,
        agree: Agree = "all",
        broadcast: Literal["sketch", "indices"] = "indices",
        indices: Indices = "int32",
        hash: Hash = "block",
        reseed: bool = True,
        momentum: float = 0.9,
        nesterov: bool = False,
        clip: float = 0.0,
        masking: bool = True,
    ) -> None:
        super().__init__(density, k, rows, columns, ratio, columns_per_entry, hash, reseed, agree)
        if p2 < 1:
            raise ValueError(f"p2 is at least 1, got {p2}")
        if p2 > 1 and fill != "estimate":
            raise ValueError(f"p2 = {p2} needs fill = estimate: entries drawn at random are not ranked")
        if p1 < 0:
            raise ValueError(f"p1 is positive, or 0 for a sketch of all entries, got {p1}")
        if broadcast == "sketch" and indices != "int32":
            raise ValueError(f"indices = {indices} needs broadcast = indices: with a sketch none are sent")
        self.fill, self.p1, self.p2, self.broadcast = fill, p1, p2, broadcast
        self.values_per_entry = p2
        self.code = SparseCode(indices=indices)
        self.feedback = self.memory = Feedback(momentum, nesterov, clip, masking)
        self.owns_momentum = momentum > 0
        self.whole_model = self.feedback.whole_model or self.whole_model

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """A sum of sketches and one of the entries that it shows; with broadcast = indices one rank chooses for all."""
        with phase("update"):
            waiting = self.feedback.accumulate(bucket, world)
        if self.goes_dense(bucket):
            return (yield from self.feedback.exchange_all(bucket, world))
        with phase("select"):
            sketch = self.sketch_of(bucket, world)
            table = self._table(bucket, sketch, waiting)
        # While measuring, all ranks need the table.
        if self.broadcast == "indices" and not world.measuring:
            index = yield from self._choose_at_one(bucket, world, sketch, table)
        else:
            table = yield Sum(table)
            index = self._choose(bucket, world, sketch, table)
        if index is None:
            return bucket.grad.fill_(math.nan)
        at_once = kernels.usable(waiting) and not world.measuring
        if at_once and self.p2 == 1:
            return (yield from self._exchange_all_of(bucket, world, index))
        total = waiting.index_select(0, index)
        if index.numel():
            total = yield Sum(bucket.narrow(total))
        k = self.entries(bucket.numel, self.model_numel(bucket))
        if at_once:
            with phase("decode"):
                return self._apply(bucket, index, total, k, world.size)
        index, total = index.long(), total.to(waiting.dtype)
        if self.p2 > 1:
            with phase("decode"):
                kept = top_k(total, k)
                index, total = index.index_select(0, kept), total.index_select(0, kept)
        if world.measuring:
            yield from self._measure(bucket, world, sketch, table, index)
        with phase("decode"):
            self.feedback.sent_narrow(bucket, index)
            return write_average(bucket.grad, index, total, world.size)

    def wire_bytes(self, numel: int, size: int) -> int:
        """The table, the values, and with broadcast = indices a rank's share of the message of the one that chooses.

        At most: where all rows have to agree, fewer than p2 k places may do.
        """
        total = self.bytes_of(numel)
        model_numel = max(self._model_numel, numel)
        if self.broadcast == "indices" and not self.is_dense(numel, model_numel):
            candidates = self.p2 * self.entries(numel, model_numel)
            total += self.code.expected_index_bytes(candidates, numel) // size
        return total

    def _apply(self, bucket: Bucket, index: Tensor, total: Tensor, k: int, size: int) -> Tensor:
        """By kernels: write the average of the `k` largest of the sums `total` at the places `index`; clear these."""
        from wirebench.compressors.kernels.together import apply

        memory, masked = self.feedback, self.feedback.momentum > 0 and self.feedback.masking
        velocity = memory.slice(bucket, VELOCITY) if masked else None
        apply(total, index, bucket.grad, memory.slice(bucket), velocity, k, size)
        return bucket.grad

    def _exchange_all_of(self, bucket: Bucket, world: ExchangeContext, index: Tensor) -> Exchange:
        """By kernels, one sum of the entries at the places `index`, none of which is left out."""
        from wirebench.compressors.kernels.entries import take

        waiting = self.feedback.slice(bucket)
        with phase("encode"):
            values = torch.empty(index.numel(), dtype=bucket.wire_dtype or waiting.dtype, device=waiting.device)
            take(waiting, index, values, rest=waiting, clear=self.feedback.masked(bucket))
        total = (yield Sum(values)) if index.numel() else values
        with phase("decode"):
            return write_average(bucket.grad, index, total, world.size)

    def _table(self, bucket: Bucket, sketch: CountSketch, waiting: Tensor) -> Tensor:
        """The sketch of `waiting`, or of its largest entries, which include every entry that is not finite."""
        if not self.p1:
            return sketch.sketch(waiting)
        return sketch.sketch_largest(
            waiting, max(int(self.p1 * self.entries(bucket.numel, self.model_numel(bucket))), 1)
        )

    def _choose(self, bucket: Bucket, world: ExchangeContext, sketch: CountSketch, table: Tensor) -> Tensor | None:
        """Places to sum exactly, ascending, the same on all ranks that have the summed table: int64, but int32 where
        kernels have found them.

        None for a sum that is not finite.
        """
        k = self.entries(bucket.numel, self.model_numel(bucket))
        with phase("select"):
            if self.fill == "estimate" and (found := sketch.find(table, self.p2 * k)) is not None:
                places, (count, unsound, _) = found[0], found[1].tolist()
                return None if unsound else places[1 : 1 + count]
            energy = sketch.l2sq(table)
            if not math.isfinite(energy):
                return None
            if self.fill == "random":
                return heavymix(sketch, table, k, energy, world.shared_rng("heavymix", bucket.start))
            return largest(sketch, table, self.p2 * k)

    def _choose_at_one(
        self, bucket: Bucket, world: ExchangeContext, sketch: CountSketch, table: Tensor
    ) -> Generator[Request, Any, Tensor | None]:
        """Like `_choose`, but one rank has the sum, chooses and sends its choice; None for a sum that is not finite."""
        total = yield Reduce(table)
        if total is None:
            message = torch.empty(0, dtype=torch.uint8, device=table.device)
        else:
            message = self._message(bucket, world, sketch, total)
        messages = yield Gather(message, values=0)
        with phase("decode"):
            told = next(each for each in messages if each.numel())
            # What is more than a head is of a finite sum: of the head alone its bytes tell, for which the host waits.
            if told.numel() == HEAD_BYTES and not bool(told[0]):
                return None
            return self.code.read_indices(told[HEAD_BYTES:], sketch.numel)

    def _message(self, bucket: Bucket, world: ExchangeContext, sketch: CountSketch, total: Tensor) -> Tensor:
        """A head of ones and the choice in code; of a sum that is not finite a head of zeros."""
        found = None
        if self.fill == "estimate":
            with phase("select"):
                found = sketch.find(total, self.p2 * self.entries(bucket.numel, self.model_numel(bucket)))
        if found is not None:
            return self._message_of(*found, sketch.numel)
        index = self._choose(bucket, world, sketch, total)
        if index is None:
            return torch.zeros(HEAD_BYTES, dtype=torch.uint8, device=total.device)
        with phase("encode"):
            head = torch.ones(HEAD_BYTES, dtype=torch.uint8, device=total.device)
            return torch.cat([head, self.code.encode_indices(index, sketch.numel)])

    def _message_of(self, places: Tensor, state: Tensor, numel: int) -> Tensor:
        """As `_message`, by kernels, of what `CountSketch.find` has found."""
        count, unsound, _ = state.tolist()
        if unsound:
            return torch.zeros(HEAD_BYTES, dtype=torch.uint8, device=places.device)
        if self.code.indices == "int32":
            return places[: 1 + count].view(torch.uint8)
        if self.code.indices == "delta":
            from wirebench.compressors.kernels.index_codes import gaps_at_once

            return gaps_at_once(places[1 : 1 + count], state[2:])
        return torch.cat([places[:1].view(torch.uint8), self.code.encode_indices(places[1 : 1 + count], numel)])

    def _measure(
        self, bucket: Bucket, world: ExchangeContext, sketch: CountSketch, table: Tensor, index: Tensor
    ) -> Generator[Request, Any, None]:
        """Take the measures, by one more sum: of the memory at some places, the same on all ranks."""
        numel, k = sketch.numel, self.entries(bucket.numel, self.model_numel(bucket))
        if numel <= SAMPLE:
            places = torch.arange(numel)
        else:
            places = torch.randint(numel, (SAMPLE,), generator=world.shared_rng("sample", bucket.start)).unique()
        places = places.to(table.device)
        exact = yield Sum(self.feedback.slice(bucket).index_select(0, places))
        top = places[top_k(exact, max(round(k * places.numel() / numel), 1))]
        error = sketch.estimate(table, places) - exact
        self.measures.total("heavy", heavy(sketch, table, k, sketch.l2sq(table)).numel())
        if not self.p1:
            # What a table of some entries shows by chance depends on how many places the ranks' choices share.
            by_chance = heavy_by_chance(numel, k, sketch.columns, sketch.rows, self.agree)
            self.measures.total("heavy_by_chance", by_chance)
        self.measures.total("chosen", index.numel())
        self.measures.ratio("recall", torch.isin(top, index).sum(), top.numel())
        self.measures.ratio("sketch_error", error.norm(), exact.norm())
