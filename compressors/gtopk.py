"""gTop-k: the top-k entries of all ranks are merged pair by pair on their way, and only k of them survive.

Shi et al., "A Distributed Synchronous SGD Algorithm with Global Top-k Sparsification for Low Bandwidth Networks", ICDCS
2019, arXiv 1901.04359, Algorithm 4. A merge adds what both messages hold and keeps the k largest, so a message never
grows, and the result depends on who merges with whom: on the plan. It is not the top-k of the sum.

Put-back: what a rank sent for a place that did not survive goes back into its residual. A partial sum that was dropped
on the way, of a place that survived elsewhere, is lost; how much is measured.
"""

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.sparse.base import Sparse, taken
from wirebench.compressors.sparse.encoding import Indices, SparseCode, Values
from wirebench.compressors.sparse.places import write_average
from wirebench.compressors.sparse.selection import top_k
from wirebench.compressors.sparse.thresholds import Rule, choose
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Merge


class GTopK(Sparse):
    """Each rank sends its top `density` of a bucket (at least one entry); as many survive.

    conserve   true: the rank that drops a partial sum takes it into its own residual where the place survived; false:
               the paper's way, it is lost
    selection  how each rank finds its largest entries (thresholds.py)
    values, indices  how entries are coded (encoding.py); what rounding cuts off at a merge counts as dropped

    Memory: the residual, 1 d. Measures: lost_mass, the sum of the magnitudes lost; lost_share, of what was sent.
    """

    collective = "tree"
    uncaptured = "the lengths of its messages depend on values"

    def __init__(
        self,
        density: float = 0.001,
        conserve: bool = False,
        selection: Rule = "exact",
        values: Values = "fp32",
        indices: Indices = "int32",
    ) -> None:
        super().__init__(density, values, indices)
        self.conserve, self.selection = conserve, selection
        self.keeps = "exactly" if conserve else "partly"
        self.lost: tuple[Tensor, Tensor] | None = None
        """(int64 places, values) that this rank accounts for as lost in the last exchange, where that was measured; a
        place may come twice."""

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One merge, then put-back."""
        grad, numel, count, code = bucket.grad, bucket.grad.numel(), self.count(bucket.numel), self.code.of(bucket)
        with phase("update"):
            residual = self.feedback.accumulate(bucket, world)
        with phase("select"):
            index = choose(residual, count, self.selection, world, bucket.start)
        with phase("encode"):
            message, values = taken(self.feedback, bucket, index, code)
        merger = _Merger(code, count, numel)
        merged = yield Merge(message, merger.merge, index.numel() * code.value_bytes, merger.merge_and_note)
        with phase("decode"):
            places, total = code.decode(merged, numel)
            _put_back(residual, index, values, places)
            if self.conserve:
                merger.take_in(residual, places)
            average = write_average(grad, places, total, world.size)
        self.lost = merger.lost_among(places) if world.measuring else None
        if self.lost is not None:
            mass = self.lost[1].abs().sum()
            self.measures.total("lost_mass", 0.0 if self.conserve else mass)
            self.measures.ratio("lost_share", 0.0 if self.conserve else mass, values.abs().sum())
        return average


def _put_back(residual: Tensor, index: Tensor, values: Tensor, survivors: Tensor) -> None:
    """Add `values` to the residual at those ascending places `index` that are not among the ascending `survivors`."""
    if kernels.usable(residual):
        from wirebench.compressors.kernels.entries import put_back

        put_back(residual, index, values, survivors)
        return
    back = ~torch.isin(index, survivors, assume_unique=True)
    residual.index_add_(0, index[back], values[back])


class _Merger:
    """The merges of one exchange on one rank, and what they drop."""

    def __init__(self, code: SparseCode, k: int, numel: int) -> None:
        self.code, self.k, self.numel = code, k, numel
        self.dropped: list[tuple[Tensor, Tensor]] = []

    def merge(self, mine: Tensor, theirs: Tensor) -> Tensor:
        """The k largest of the sum of two messages."""
        if kernels.usable(mine):
            return self._merge_at_once(mine, theirs)[0]
        index, values, kept = self._largest(mine, theirs)
        return self.code.encode(index[kept], values[kept], self.numel)

    def merge_and_note(self, mine: Tensor, theirs: Tensor) -> Tensor:
        """Like `merge`, but it also notes the entries and the rounding errors that are dropped."""
        if kernels.usable(mine):
            message, *dropped = self._merge_at_once(mine, theirs)
            self.dropped.append((dropped[0], dropped[1]))
            return message
        index, values, kept = self._largest(mine, theirs)
        left = values.clone()
        left[kept] -= self.code.rounded(values[kept])
        rest = torch.nonzero(left).squeeze(1)
        self.dropped.append((index[rest], left[rest]))
        return self.code.encode(index[kept], values[kept], self.numel)

    def lost_among(self, survivors: Tensor) -> tuple[Tensor, Tensor]:
        """(places, values) that were dropped at the places `survivors`; elsewhere every rank puts back what it sent."""
        if not self.dropped:
            return survivors[:0], torch.empty(0, device=survivors.device)
        index, values = (torch.cat(parts) for parts in zip(*self.dropped, strict=True))
        lost = torch.isin(index.long(), survivors) & (values != 0)
        return index[lost].long(), values[lost]

    def take_in(self, residual: Tensor, survivors: Tensor) -> None:
        """Add what is lost at the places `survivors` to a residual."""
        if not kernels.usable(residual):  # a place may come twice
            index, values = self.lost_among(survivors)
            residual.index_put_((index,), values, accumulate=True)
            return
        from wirebench.compressors.kernels.entries import put_back

        for index, values in self.dropped:
            put_back(residual, index, values, survivors, kept=True)

    def _merge_at_once(self, mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """By kernels, the merged message, and the places and values of all that is dropped, some of which are 0."""
        from wirebench.compressors.kernels.merges import merge

        messages, arrived = [mine, theirs], torch.zeros(1, dtype=torch.int32, device=mine.device)
        listed = self.code.listed_at_once(messages, [self.numel] * 2, arrived)
        message, places, left = merge(mine, messages, self.code.dtype, self.k, listed)
        if listed is None:
            return message, places, left
        count = message.numel() // (4 + self.code.value_bytes)
        size = count * self.code.value_bytes
        code = self.code.encode_at_once(message[: 4 * count].view(torch.int32), self.numel, size)
        code[code.numel() - size :] = message[4 * count :]
        return code, places, left

    def _largest(self, mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Ascending places of both messages, the sums there, and which of them are the k largest."""
        first, second = self.code.decode(mine, self.numel), self.code.decode(theirs, self.numel)
        index, where = torch.unique(torch.cat([first[0], second[0]]), return_inverse=True)
        values = torch.zeros(index.numel(), device=index.device)
        # No place comes twice in one message.
        values.index_add_(0, where[: first[0].numel()], first[1])
        values.index_add_(0, where[first[0].numel() :], second[1])
        return index, values, top_k(values, self.k)
