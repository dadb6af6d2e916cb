"""What low-rank methods share: options, the residual, the basis that is kept from step to step, the result."""

from math import isqrt
from typing import ClassVar

import torch
from torch import Tensor

from wirebench.compressors.common.own_steps import OwnSteps
from wirebench.compressors.lowrank.factors import Pack, Place, Plan, Run, plan_of
from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Keeps, Method
from wirebench.gradient.flat import Bucket
from wirebench.utils.rng import generator


class Factored(Method):
    """Base of methods that start from the factors of their last step, the same on all ranks: `shared` has them.

    warm_start   false: they start from new draws at each step
    rank_option  the option that says how many rows a factor has
    """

    warm_start = True
    rank_option: ClassVar[str] = "rank"

    def __init__(self) -> None:
        super().__init__()
        self._draws: dict[Pack, Tensor] = {}

    def start(self, pack: Pack, world: ExchangeContext, device: torch.device) -> Tensor:
        """The factors to start from, packed: the last ones; standard normal where there are none, or for a lost row.

        A row that is zero would stay so for ever, and so would one that is not finite, after a step that overflowed.
        """
        draws = self._drawn(pack, world, device)
        if not self.warm_start:
            return draws
        last = torch.cat(
            [self._last(place, device) if place.key in self.shared else draws[place.piece] for place in pack.places]
        )
        # On a GPU nothing here makes the host wait.
        for now, new in zip(pack.groups(last), pack.groups(draws), strict=True):
            sound = now.any(2, keepdim=True) & now.isfinite().all(2, keepdim=True)
            now.copy_(torch.where(sound, now, new))
        return last

    def keep(self, pack: Pack, packed: Tensor) -> None:
        """Remember factors, which are the same on all ranks, for the next start."""
        if self.warm_start:
            self.shared.update({place.key: packed[place.piece].view(place.shape) for place in pack.places})

    def _drawn(self, pack: Pack, world: ExchangeContext, device: torch.device) -> Tensor:
        """Standard normal factors: always the same for a layer, but new each step without warm start."""
        if pack in self._draws:
            return self._draws[pack]
        draws = []
        for place in pack.places:
            key = ("low rank", place.layer.start, place.side)
            rng = generator(*key, world.seed) if self.warm_start else world.shared_rng(*key)
            draws.append(torch.randn(place.shape, generator=rng).view(-1))
        drawn = torch.cat(draws).to(device)
        if self.warm_start:
            self._draws[pack] = drawn
        return drawn

    def _last(self, place: Place, device: torch.device) -> Tensor:
        factor = self.shared[place.key]
        if factor.shape != place.shape:
            raise UserError(
                f"compressor: the saved factor {place.key} is {tuple(factor.shape)}, but this run's is {place.shape}; "
                f"resume with the same model and compressor.{self.rank_option}"
            )
        return factor.to(device).view(-1)  # checkpoints are read to the CPU


class LowRank(OwnSteps, Factored):
    """Base of methods that send factors of matrices, and all other layers dense in the same sum.

    rank                  columns of a factor; no more than the smaller side of the matrix
    min_compression_rate  a layer goes dense unless its factors' payload, on average over steps, is more than this many
                          times smaller; at least 1
    error_feedback        what the factors miss is added to the next gradient; false: it is lost
    start_step            steps that go dense before compression begins
    Measures, with error feedback: kept_energy, the squares of what stays in the residual over the squares of M.

    The residual is each rank's own M less its own share of the sum of factors: Algorithm 2 of PowerSGD's paper, and
    ACP-SGD's code. PowerSGD's code and PyTorch's hook subtract the average instead. The sum over ranks is the same, and
    only the sum enters what is applied; but there the ranks' differences, which sum to 0, never leave the residuals.
    All ranks must compute alike (threads, kind of processor) for the factors' basis to have the same bits on each.
    """

    keeps: Keeps = "rounded"
    bounded_by = "rank"
    sides: ClassVar[int]  # factors sent per step, of two

    def __init__(self, rank: int, min_compression_rate: float, error_feedback: bool, start_step: int) -> None:
        super().__init__()
        if rank < 1:
            raise ValueError(f"rank is at least 1, got {rank}")
        if not min_compression_rate >= 1:
            raise ValueError(f"min_compression_rate is at least 1, got {min_compression_rate}")
        if start_step < 0:
            raise ValueError(f"start_step is a number of steps, at least 0, got {start_step}")
        self.rank, self.min_compression_rate = rank, min_compression_rate
        self.error_feedback, self.start_step = error_feedback, start_step
        if not error_feedback:
            self.keeps = "nothing"
            self.bounded_by = ""

    def wire_bytes(self, numel: int, size: int) -> int:
        """The bytes of one square matrix of `numel` elements; other matrices, and several layers, send more."""
        return 4 * min(numel, self.sides * self.rank * (isqrt(numel - 1) + 1))

    def plan(self, bucket: Bucket, world: ExchangeContext) -> Plan | None:
        """How `bucket` is sent at this step; None: all of it dense."""
        if self.start_step and self.own_step(world.step) < self.start_step:
            return None
        plan = plan_of(bucket.layers, self.rank, self.min_compression_rate * self.sides / 2)
        return plan if plan.runs else None

    def take_in(self, bucket: Bucket, run: Run, world: ExchangeContext) -> Tensor:
        """M of the layers of `run`, (count, rows, columns): a view of the residual, or of the gradient without one."""
        matrices = run.matrices(bucket.grad, bucket.start)
        if self.error_feedback:
            matrices = run.matrices(self.memory.slice(bucket), bucket.start).add_(matrices)
            if world.measuring:
                self.measures.ratio("kept_energy", 0.0, _energy(matrices))
        return matrices

    def hold_back(self, matrices: Tensor, left: Tensor, right: Tensor, world: ExchangeContext) -> None:
        """Take left^T right, which is what this rank has sent of its M, out of the residual."""
        if self.error_feedback:
            _subtract(matrices, left, right)
            if world.measuring:
                self.measures.ratio("kept_energy", _energy(matrices), 0.0)

    def write(self, bucket: Bucket, run: Run, left: Tensor, right: Tensor) -> None:
        """Write left^T right, the average, to the gradient of the layers of `run`."""
        matrices = run.matrices(bucket.grad, bucket.start)
        if run.rank == 1:  # several times faster than a product of matrices
            torch.mul(left.mT, right, out=matrices)
        else:
            torch.bmm(left.mT, right, out=matrices)

    def basis(self, pack: Pack, world: ExchangeContext, device: torch.device) -> list[Tensor]:
        """One orthonormal row per rank for each run: a basis of the last factors, or of a random start."""
        return pack.orthonormal(self.start(pack, world, device))


def _subtract(matrices: Tensor, left: Tensor, right: Tensor) -> None:
    if left.shape[1] == 1:
        matrices.addcmul_(left.mT, right, value=-1)
    else:
        matrices.baddbmm_(left.mT, right, alpha=-1)


def _energy(matrices: Tensor) -> Tensor:
    return torch.linalg.vector_norm(matrices, dtype=torch.float64).square()
