"""What low-rank methods share: options, the residual, the basis that is kept from step to step, the result."""

from math import isqrt
from typing import ClassVar

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.common.own_steps import OwnSteps
from wirebench.compressors.lowrank.factors import FactorPlace, FactorPlan, Pack, PackedFactors, plan_of
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
        self._kept: dict[object, tuple[Tensor, dict[str, Tensor]]] = {}

    def last(self, pack: Pack, world: ExchangeContext, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """The factors to start from, packed: the last ones, or standard normal ones; and what a lost row of the last
        ones is replaced with, None for draws.

        A row that is zero would stay so for ever, and so would one that is not finite, after a step that overflowed.
        """
        draws = self.draws(pack, world, device)
        if not self.warm_start:
            return draws, None
        kept = self.kept_by(pack, device)
        if kept is not None:
            return kept, draws
        last = torch.cat(
            [self._last(place, device) if place.key in self.shared else draws[place.piece] for place in pack.places]
        )
        return last, draws

    def start(self, pack: Pack, world: ExchangeContext, device: torch.device) -> PackedFactors:
        """The factors to start from, of a method that keeps what `Pack.to_unit` gives."""
        last, draws = self.last(pack, world, device)
        if draws is not None and self.kept_by(pack, device) is None:
            pack.mend(last, draws)
        return pack.of(last)

    def keep(self, pack: Pack, packed: Tensor) -> None:
        """Remember factors, which are the same on all ranks, for the next start.

        Where kernels work they stay in the same memory, where captured graphs read them.
        """
        if not self.warm_start:
            return
        if (kept := self.kept_by(pack, packed.device)) is not None:
            kept.copy_(packed)
            return
        packed = packed.clone() if kernels.usable(packed) else packed
        self.share(pack, packed, {place.key: packed[place.piece].view(place.shape) for place in pack.places})

    def share(self, owner: object, packed: Tensor, views: dict[str, Tensor]) -> None:
        """Put views of a vector into `shared`. Where kernels work, the vector itself is found again by its owner."""
        self.shared.update(views)
        if kernels.usable(packed):
            self._kept[owner] = packed, views

    def kept_by(self, owner: object, device: torch.device) -> Tensor | None:
        """The vector that `share` got, if its views still are in `shared`."""
        packed, views = self._kept.get(owner, (None, {}))
        same = packed is not None and packed.device == device
        return packed if same and all(self.shared.get(name) is view for name, view in views.items()) else None

    def draws(self, pack: Pack, world: ExchangeContext, device: torch.device) -> Tensor:
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

    def _last(self, place: FactorPlace, device: torch.device) -> Tensor:
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

    def plan(self, bucket: Bucket, world: ExchangeContext) -> FactorPlan | None:
        """How `bucket` is sent at this step; None: all of it dense."""
        if self.start_step and self.own_step(world.step) < self.start_step:
            return None
        plan = plan_of(bucket.layers, self.rank, self.min_compression_rate * self.sides / 2)
        return plan if plan.runs else None

    def memory_of(self, bucket: Bucket) -> Tensor:
        """The vector whose matrices are M: the residual, to which the gradient is added; or the gradient."""
        return self.memory.slice(bucket) if self.error_feedback else bucket.grad

    def factors(
        self,
        plan: FactorPlan,
        bucket: Bucket,
        world: ExchangeContext,
        basis: PackedFactors,
        out: PackedFactors,
        to_left: bool,
        add: bool,
    ) -> None:
        """The factors that are sent, of M; what they stand for leaves the residual, if there is one.

        add  the gradient is not in M yet
        """
        kept = self.error_feedback
        flat, added = self.memory_of(bucket), bucket.grad if add and kept else None
        energies: list[tuple[Tensor, Tensor]] | None = [] if kept and world.measuring else None
        plan.factors(flat, basis, out, to_left, added, bucket if kept else None, energies=energies)
        for before, after in energies or ():
            self.measures.ratio("kept_energy", after, before)

    def basis(self, pack: Pack, world: ExchangeContext, device: torch.device) -> PackedFactors:
        """One orthonormal row per rank for each run: a basis of the last factors, or of a random start."""
        last, draws = self.last(pack, world, device)
        return pack.orthonormal(last, draws)
