"""signSGD: one bit for every element, its sign; averaged with scales and error feedback, or put to the vote.

Karimireddy et al., "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019: EF-signSGD, here
on every rank, as in its section on several workers. Bernstein et al., "signSGD: Compressed Optimisation for Non-Convex
Problems", ICML 2018, and "signSGD with Majority Vote is Communication Efficient and Fault Tolerant", ICLR 2019.
"""

from typing import Literal

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.bits.blocks import Groups, by_layer, mean_magnitudes
from wirebench.compressors.bits.fields import WORD_BITS, WORD_BYTES
from wirebench.compressors.bits.signs import Signs
from wirebench.compressors.common.feedback import Rounding, kept_energy
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather, Sum


class SignSGD(Rounding):
    """Each rank sends the signs of its gradient, and one number per layer.

    form      mean: the result is the average over ranks of scale_r sign_r.
              vote: it is the sign that most ranks have, 0 at a tie, times the average of their scales
    feedback  error feedback: the error of a rank's scale and signs is added to its next gradient; for form = "mean"
              with scale = "mean". No rank knows its own share of a vote, so form = "vote" needs feedback = false
    scale     mean: a layer's mean magnitude, of gradient plus residual. one: 1, as in the first paper, whose learning
              rate is the step; 0 for a layer of zeros

    Form mean gathers: an int32 for 32 elements, 4 bytes for each layer. So does vote for few ranks. Where a ring moves
    fewer bytes for a sum, at 7 and from 9 ranks on, vote sums a field of ceil(log2(P + 1)) bits for every element, as
    many to an int32 as fit, and takes one more sum for the scales. In a vote a zero counts as plus or minus in turn,
    by rank and step, so that no parameter drifts that gets no gradient.

    Biases and normalisation go dense; the papers do not mention them. Their gradients are of many sizes, which one
    scale represents badly (docs/compressors.md).

    Memory: with feedback the residual, 1 d. Measures, with feedback: kept_energy, the squares of what stays in the
    residual over the squares of what was to be sent.
    """

    dense_below = 1
    bounded_by = "name, to onebit: its numbers are of rows, not of whole layers"

    def __init__(
        self,
        form: Literal["mean", "vote"] = "mean",
        feedback: bool = True,
        scale: Literal["mean", "one"] = "mean",
    ) -> None:
        super().__init__(feedback)
        if feedback and (form, scale) != ("mean", "mean"):
            raise ValueError('feedback needs form = "mean" and scale = "mean"; set feedback = false for the others')
        self.form, self.scale, self.scale_free = form, scale, scale == "one"
        if form == "vote":
            self.uncaptured = "in form = vote a zero votes for plus or minus by the step's number"

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """The rounds of its form."""
        return (yield from (self._mean if self.form == "mean" else self._vote)(bucket, world))

    def wire_bytes(self, numel: int, size: int) -> int:
        """The bits, and one scale."""
        per_word = WORD_BITS // (size.bit_length() if self._sums(size) else 1)
        return WORD_BYTES * (-(-numel // per_word) + 1)

    def _mean(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        grad, groups = bucket.grad, by_layer(bucket)
        x, keeps = self.accumulated(bucket, world), self.feedback is not None
        with phase("select"):
            scales = self._scales(x, groups)
        with kept_energy(self.measures, x, world.measuring and keeps), phase("encode"):
            code = Signs(groups, grad.device)
            words = code.encode(x, (scales, None) if keeps else None)
            message = torch.cat([scales.view(torch.int32), words])
        messages = yield Gather(message, values=words.numel())
        with phase("decode"):
            parts = [(s.view(torch.float32), w) for s, w in (m.split([len(groups), words.numel()]) for m in messages)]
            return code.decode([(w, s, None) for s, w in parts], grad)

    def _vote(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        grad, groups, size, sums = bucket.grad, by_layer(bucket), world.size, self._sums(world.size)
        odd = world.rank % 2 == 1
        with phase("select"):
            scales = self._scales(grad, groups)
        with phase("encode"):
            # As every second rank sends 0 and 1 in place of -1 and 0, the sum lies around 0.
            code = Signs(groups, grad.device, size.bit_length() if sums else 1, raised=sums and odd)
            words = code.encode(grad, zeros_are_negative=odd != (world.step % 2 == 1))
        if sums:
            scales = yield Sum(scales, values=0)
            contributions = [(yield Sum(words))]
        else:
            messages = yield Gather(torch.cat([scales.view(torch.int32), words]), values=words.numel())
            parts = [each.split([len(groups), words.numel()]) for each in messages]
            scales = kernels.stacked([each.view(torch.float32) for each, _ in parts]).sum(0)
            contributions = [each for _, each in parts]
        with phase("decode"):
            # Half the votes: each minus took 1 from size / 2, and every raised rank added 1.
            plus = size / 2 - (size // 2 if sums else 0)
            return code.decode_vote(contributions, plus, self._factors(scales / size), grad)

    def _scales(self, x: Tensor, groups: Groups) -> Tensor:
        return self._factors(mean_magnitudes(x, groups))

    def _factors(self, scales: Tensor) -> Tensor:
        """`scales` unchanged; with scale = "one", 1 in place of every scale that is finite and not 0."""
        return scales if self.scale == "mean" else scales.sign().add_(scales, alpha=0)

    def _sums(self, size: int) -> bool:
        """Whether a ring's sum moves less than its gather: 2 (P - 1) / P of the words, against P - 1 of the bits."""
        return self.form == "vote" and size * (WORD_BITS // size.bit_length()) > 2 * WORD_BITS
