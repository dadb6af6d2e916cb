"""Distributed Lion: every rank votes with the signs of its own Lion update, and the majority is the update.

Liu et al., "Communication Efficient Distributed Training with Distributed Lion", NeurIPS 2024, arXiv 2404.00438,
Algorithm 1 with majority vote: one bit for each element, and a momentum of each rank's own that never travels.
"""

from dataclasses import replace

from wirebench.compressors.common.lion import betas, blend
from wirebench.compressors.signsgd import SignSGD
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.error_memory import VELOCITY, ErrorMemory
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase


class LionSign(Method):
    """Each rank sends the signs of beta1 m + (1 - beta1) g, and keeps m <- beta2 m + (1 - beta2) g.

    beta1, beta2  0.9 and 0.99 are the authors'

    What it returns is the sign that most ranks have: an update for plain SGD (makes_update). Its learning rate is the
    step of every element, about a tenth of AdamW's, and weight decay is SGD's, which decays weights apart from the
    signs, as the authors do. `signsgd` with form = "vote" and scale = "one" takes the vote: one bit gathered, or a
    field summed if that is less. A tie, possible with an even number of ranks, gives 0. Where a rank's direction is 0,
    it votes alternately for plus and minus; the authors' sign(0) is 0. A layer of zeros stays.

    Memory: the momentum, 1 d, each rank's own. Ranks that leave hand theirs on, so that its average is kept.
    """

    owns_momentum = True
    makes_update = True
    uncaptured = "a zero votes for plus or minus by the step's number"

    def __init__(self, beta1: float = 0.9, beta2: float = 0.99) -> None:
        super().__init__()
        self.beta1, self.beta2 = betas(beta1, beta2)
        self.memory = ErrorMemory(VELOCITY)
        self.vote = SignSGD(form="vote", feedback=False, scale="one")

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """The vote's rounds."""
        with phase("update"):
            direction = blend(bucket.grad, self.memory.slice(bucket, VELOCITY), self.beta1, self.beta2)
        return (yield from self.vote.exchange(replace(bucket, grad=direction), world))

    def wire_bytes(self, numel: int, size: int) -> int:
        """The vote's."""
        return self.vote.wire_bytes(numel, size)
