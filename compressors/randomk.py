"""Random-k with error feedback: all ranks send the same places, new ones each step, so that no index travels.

Stich, Cordonnier and Jaggi, "Sparsified SGD with Memory", NeurIPS 2018 (rand_k with memory); Wangni et al., "Gradient
Sparsification for Communication-Efficient Distributed Optimization", NeurIPS 2018 (unbiased, without memory). The
run's seed, the step and the bucket seed the sample, so every rank makes it for itself.
"""

import numpy as np
import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.sparse.base import Sparse
from wirebench.compressors.sparse.encoding import Values
from wirebench.compressors.sparse.gaps import places_of
from wirebench.compressors.sparse.places import values_at, write_average
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Sum

CROWDED = 1 / 32
"""Above this share of places, marking them in a vector of flags is faster than sorting them."""


class RandomK(Sparse):
    """Sends the `density` of a bucket's entries (at least one), sampled uniformly without replacement.

    error_feedback  what is not sent stays in the residual and is added to the next gradient. False: what is sent is
                    multiplied by d / k, an unbiased estimate, and the rest is lost
    values          what the values travel as and are summed in. With fp16 or bf16, what a rank's rounding cuts off
                    stays in its residual, what the sum rounds is lost; beyond 65504 (fp16) the run ends as diverged
    Extra memory: the residual, 1 d.
    """

    uncaptured = "it draws its places on the host"

    def __init__(self, density: float = 0.001, error_feedback: bool = True, values: Values = "fp32") -> None:
        super().__init__(density, values, "int32")
        self.error_feedback = error_feedback
        if values != "fp32":
            self.keeps = "rounded"
        if not error_feedback:
            self.keeps, self.bounded_by = "nothing", ""

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One sum of k values.

        Passes over the bucket: reading both and writing one for the sum with the residual, a reading to see that all is
        finite, one writing of the average.
        """
        grad, code = bucket.grad, self.code.of(bucket)
        count, numel = self.count(bucket.numel), bucket.numel
        with phase("update"):
            offered = self.feedback.accumulate(bucket, world) if self.error_feedback else grad
        with phase("select"):
            drawn = draw(numel, count, world.shared_rng("randomk", bucket.start))
            index = kernels.on(grad.device, places_of(bucket, drawn.device).at(drawn))
        with phase("encode"):
            values = values_at(offered, index, code, offered if self.error_feedback else None)
        total = yield Sum(values)
        assert isinstance(total, Tensor)
        with phase("decode"):
            # Scaled after the sum, so that a narrow type does not overflow.
            return write_average(grad, index, total, world.size * (1 if self.error_feedback else count / numel))

    def wire_bytes(self, numel: int, size: int) -> int:
        """A value for each drawn entry."""
        return self.code.value_bytes * self.count(numel)


def draw(numel: int, count: int, generator: torch.Generator) -> Tensor:
    """`count` different places below `numel`, int64, ascending; each set of `count` places is equally likely.

    It samples on the CPU, where the same seed gives the same places whatever GPUs the ranks have.
    """
    if 2 * count > numel:  # fewer places are left out than chosen: sample the ones to leave out
        out = torch.ones(numel, dtype=torch.bool)
        out[draw(numel, numel - count, generator)] = False
        return torch.nonzero(out).squeeze(1)
    if count > CROWDED * numel:
        return _marked(numel, count, generator)
    # The first `count` different places of a random sequence. Each round samples exactly the number that is missing, so
    # that the last sample completes the set. With more, dropping the surplus would have to be a fair choice too.
    drawn = np.empty(0, np.int64)
    while drawn.size < count:
        more = torch.randint(numel, (count - drawn.size,), generator=generator)
        # A GPU waits for this, which is eight times as fast as `Tensor.unique`.
        drawn = np.sort(np.append(drawn, more.numpy()))
        drawn = drawn[np.diff(drawn, prepend=-1) > 0]
    return torch.from_numpy(drawn)


def _marked(numel: int, count: int, generator: torch.Generator) -> Tensor:
    """Like `draw`, by setting flags: faster than sorting if many places are sampled."""
    flags, missing = torch.zeros(numel, dtype=torch.bool), count
    while missing:
        flags[torch.randint(numel, (missing,), generator=generator)] = True
        missing = count - int(flags.count_nonzero())
    return torch.nonzero(flags).squeeze(1)
