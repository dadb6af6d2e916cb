"""Dion: orthonormal updates of low rank, of which ranks sum the factors only.

Ahn, Xu, Abreu, Fan, Magakyan, Sharma, Zhan and Langford, "Dion: Distributed Orthonormalized Updates", arXiv 2504.05295;
details of its authors' code (microsoft/dion, `dion_simple.py`). For a layer's matrix (n, m), with M each rank's own:
  M <- M + G,  P <- orthonormal basis of the sum of M Q,  R <- M^T P,  M <- M - (1 - mu) P R^T
  Q <- the average of R, each column divided by its norm;  update: sqrt(n / m) P Q^T
Nakamori, Gomezjurado Gonzalez, Talluri et al., "Orth-Dion", arXiv 2605.16341: Q <- an orthonormal basis of R's columns.
"""

from math import ceil, isqrt

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.common.lion import Lion, betas, blend, signs
from wirebench.compressors.lowrank.base import Factored
from wirebench.compressors.lowrank.factors import plan_of
from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket, Layer
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Sum

FULL = 1 << 30
"""A rank that no matrix has."""


class Dion(Factored):
    """Two sums for a bucket: all matrices' P with the vectors' gradients, then all R.

    rank_fraction  the rank, as a share of a matrix's smaller side, rounded up; 1 comes near Muon's update, and sends
                   more than the gradient. The authors' code has 1, their README 0.25 for 3 billion parameters
    mu             what of the sent part stays in the momentum M
    beta1, beta2   of Lion's update, which vectors get from their dense average, as in the authors' code
    orthonormal    Orth-Dion's Q, within Dion's momentum: its paper's clears the sent part, and shrinks what is left

    M is momentum and error feedback in one: what the factors miss stays in it. What it returns is an update for plain
    SGD (makes_update), whose weight decay is decoupled as the authors' is; their learning rate is 0.01 to 0.02.

    What is the authors': the algorithm and its constants. What is not: a rank takes its own share P R_r^T from its M,
    where they take the average's (the sum over ranks is the same, and no other enters an update; but there the ranks'
    differences never leave); P is Householder's, on a GPU Cholesky's in fp64, theirs Cholesky's after a random sketch
    (as is Orth-Dion's Q where kernels work, elsewhere Householder's); embeddings and heads count as matrices, since a
    bucket does not know them, where theirs go to another optimizer; a kernel of a convolution is a matrix of its output
    channels. All ranks must compute alike, as with `powersgd`.

    Memory: M, 1 d; Q of each matrix, and Lion's momentum of the vectors, which all ranks share.
    """

    owns_momentum = True
    makes_update = True
    rank_option = "rank_fraction"
    uncaptured = ""

    def __init__(
        self, rank_fraction: float = 0.25, mu: float = 0.95, beta1: float = 0.9, beta2: float = 0.95,
        orthonormal: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if not 0 < rank_fraction <= 1:
            raise ValueError(f"rank_fraction lies in (0, 1], got {rank_fraction:g}")
        if not 0 <= mu < 1:
            raise ValueError(f"mu lies in [0, 1), got {mu:g}")
        self.rank_fraction, self.mu, self.orthonormal = rank_fraction, mu, orthonormal
        self.beta1, self.beta2 = betas(beta1, beta2)

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """Two sums; one where there are vectors only."""
        grad = bucket.grad
        plan = plan_of(bucket.layers, self.rank_fraction if self.rank_fraction < 1 else FULL, 0.0)
        with phase("update"):
            message, lefts = plan.message(grad, plan.left)
            memory = self.memory.slice(bucket)
            if plan.runs:
                plan.factors(memory, self.start(plan.right, world, grad.device), lefts, to_left=True, added=grad)
        total = yield Sum(bucket.narrow(message))
        with phase("select"):
            lion = self._lion(bucket) if kernels.usable(grad) else None
            lefts = plan.left.orthonormal(plan.settle(total.to(grad.dtype), grad, world.size, lion))
            packed = grad.new_empty(plan.right.numel)
            right = plan.right.of(packed)
            plan.factors(memory, lefts, right, to_left=False, leaving=bucket, share=1 - self.mu)
        if plan.runs:
            packed = yield Sum(bucket.narrow(packed))
        with phase("decode"):
            if plan.runs:
                draws = self.draws(plan.right, world, grad.device)
                packed, start = plan.right.to_unit(packed.to(grad.dtype), world.size, self.orthonormal, draws)
                self.keep(plan.right, start)
            plan.write(grad, lefts, plan.right.of(packed), shaped=True)
            if lion is None:
                self._update_vectors(bucket)
        return grad

    def wire_bytes(self, numel: int, size: int) -> int:
        """The bytes of one square matrix of `numel` elements; other matrices, and several layers, send more."""
        side = isqrt(numel - 1) + 1
        return 4 * 2 * ceil(self.rank_fraction * side) * side

    def sent_share(self, numel: int) -> float:
        """1: in every step the update comes from the whole matrix."""
        return 1.0

    def _update_vectors(self, bucket: Bucket) -> None:
        """Lion's update, of vectors, in place of their average gradients."""
        for layer in bucket.layers:
            if layer.ndim < 2:
                average = bucket.grad[layer.start - bucket.start : layer.stop - bucket.start]
                momentum = self.shared[_key(layer)] = self._momentum(layer, bucket.grad)
                average.copy_(signs(blend(average, momentum, self.beta1, self.beta2)))

    def _momentum(self, layer: Layer, grad: Tensor) -> Tensor:
        momentum = self.shared.get(_key(layer))
        if momentum is None:
            momentum = grad.new_zeros(layer.numel)
        if momentum.numel() != layer.numel:
            raise UserError(f"compressor: the saved momentum of {layer.name} is of another model")
        return momentum.to(grad.device)

    def _lion(self, bucket: Bucket) -> Lion:
        """Lion's momentum of the bucket's vectors, one after the other."""
        vectors = tuple(layer for layer in bucket.layers if layer.ndim < 2)
        momentum = self.kept_by(vectors, bucket.grad.device)
        if momentum is None:
            parts = [self._momentum(layer, bucket.grad) for layer in vectors]
            momentum = torch.cat(parts) if parts else bucket.grad.new_empty(0)
            pieces = momentum.split([layer.numel for layer in vectors])
            self.share(vectors, momentum, {_key(layer): each for layer, each in zip(vectors, pieces, strict=True)})
        return Lion(momentum, self.beta1, self.beta2)


def _key(layer: Layer) -> str:
    return f"{layer.name}.momentum"
