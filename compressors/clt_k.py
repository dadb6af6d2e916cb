"""CLT-k (ScaleCom): one rank, another at each step, chooses its largest entries; all ranks send theirs at its places.

Chen et al., "ScaleCom: Scalable Sparsified Gradient Compression for Communication-Efficient Distributed Training",
NeurIPS 2020: the cyclic local top-k, and a low-pass filter on the memory. Since all send the same places, the values
are one dense sum, and what a rank sends and receives does not grow with the number of ranks.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from wirebench.compressors import kernels
from wirebench.compressors.sparse.base import Sparse
from wirebench.compressors.sparse.encoding import Indices, Values
from wirebench.compressors.sparse.places import values_at, write_average
from wirebench.compressors.sparse.thresholds import Rule, choose
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather, Sum


class CltK(Sparse):
    """The leader of step t, rank t mod P, chooses the `density` of its entries (at least one per bucket).

    beta             the paper's filter m <- (1 - beta) m + beta (m + g - sent), 0 < beta <= 1; m + g is sent. 1: plain
                     error feedback. The residual is stored as m / beta: g - sent is added to it without a factor, so no
                     gradient is lost. The sum sent is beta times the residual, plus g
    selection        how the leader finds its largest (thresholds.py)
    values           what the values travel as and are summed in. With fp16 or bf16, what a rank's rounding cuts off
                     stays in its residual, what the sum rounds is lost; beyond 65504 (fp16) the run ends as diverged
    indices          how the leader's places are coded (encoding.py). They reach all ranks as a sum to which the others
                     give zeros, since an engine's own gather may pad every rank's message to the longest; `delta`, of
                     which only the leader knows the length, is gathered
    Extra memory: the residual, 1 d.
    """

    takes_turns = True
    uncaptured = "another rank chooses in each step"

    def __init__(
        self,
        density: float = 0.001,
        beta: float = 1.0,
        selection: Rule = "exact",
        values: Values = "fp32",
        indices: Indices = "int32",
    ) -> None:
        super().__init__(density, values, indices)
        if not 0 < beta <= 1:
            raise ValueError(f"beta lies in (0, 1], got {beta}")
        self.beta, self.selection = beta, selection
        if beta != 1 or values != "fp32":
            self.keeps = "rounded"

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """The leader's places, then one sum of values at them.

        Passes over the bucket: reading both and writing one for the sum with the residual (twice that with a filter),
        a reading to see that all is finite, two readings for the leader's selection, one writing of the average.
        """
        grad, coded = bucket.grad, self.code.of(bucket)
        with phase("update"):
            residual = self.feedback.accumulate(bucket, world)
            # The residual is now m / beta + g, so this is (1 - beta) g + beta (m / beta + g) = m + g.
            offered = residual if self.beta == 1 else grad.lerp_(residual, self.beta)
        index = yield from self._places(offered, bucket, world)
        with phase("encode"):
            leads = world.step % world.size == world.rank
            values = values_at(offered, index, coded, residual, leads)
        total = yield Sum(values)
        assert isinstance(total, Tensor)
        with phase("decode"):
            return write_average(grad, index, total, world.size)

    def held_back(self, numel: int) -> Tensor | None:
        """See Method.held_back: the residual is kept over beta."""
        held = super().held_back(numel)
        return held if held is None or self.beta == 1 else held * self.beta

    def _places(self, offered: Tensor, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """The leader's places, on every rank, int64 (int32 with kernels), ascending; at least one."""
        count, numel = self.count(bucket.numel), offered.numel()
        if count >= bucket.numel:
            return torch.arange(numel, device=offered.device)
        leads = world.step % world.size == world.rank
        code = torch.empty(0, dtype=torch.uint8, device=offered.device)
        if leads:
            with phase("select"):
                index = choose(offered, count, self.selection, world, bucket.start)
                # Where all of its entries are 0 it names the first place, so that others' NaN can travel in the sum.
                code = self.code.encode_indices(index if index.numel() else index.new_zeros(1), numel)
        if self.code.indices == "delta":
            messages = yield Gather(code, values=0)
            return self.code.read_indices(messages[world.step % world.size], numel)
        # A sum needs as many bytes on every rank: before fewer places than usual there are -1.
        missing = self.code.expected_index_bytes(count, numel) - code.numel()
        code = pad(code, (missing, 0), value=255 if leads else 0) if missing else code
        words = yield Sum(code.view(torch.int32), values=0)
        if self.code.indices == "int32":
            if kernels.usable(offered):  # which take -1 for none
                return words
            words = words[words >= 0]
        return self.code.read_indices(words.view(torch.uint8), numel)
