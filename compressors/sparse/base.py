"""What methods that send chosen entries share: how many, in which code, what stays behind, and the average."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.common.feedback import Feedback
from wirebench.compressors.sparse.encoding import Indices, SparseCode, Values
from wirebench.compressors.sparse.thresholds import EXACT_BY_KERNELS, Rule, choose
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Keeps, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather


class Sparse(Method):
    """Base of methods that send `density` of a bucket's entries (at least one) and keep the rest for later."""

    keeps: Keeps = "exactly"
    bounded_by = "density"
    density: float

    def __init__(self, density: float, values: Values, indices: Indices, feedback: Feedback | None = None) -> None:
        super().__init__()
        if not 0 < density <= 1:
            raise ValueError(f"density lies in (0, 1], got {density}")
        self.density = density
        self.code = SparseCode(values, indices)
        self.feedback = self.memory = feedback or Feedback()
        self.owns_momentum = self.feedback.momentum > 0
        self.whole_model = self.feedback.whole_model or self.whole_model

    def count(self, numel: int) -> int:
        """Entries to send of a bucket of `numel` elements."""
        return max(int(numel * self.density), 1)

    def wire_bytes(self, numel: int, size: int) -> int:
        """A value and an index for each chosen entry."""
        return self.code.expected_bytes(self.count(numel), numel)


class SparseGather(Sparse):
    """Base of the methods whose ranks each choose their largest entries and gather all ranks'."""

    uncaptured = ""

    def __init__(
        self, density: float, selection: Rule, values: Values, indices: Indices, feedback: Feedback | None = None
    ) -> None:
        super().__init__(density, values, indices, feedback)
        self.selection = selection
        if selection not in EXACT_BY_KERNELS or indices == "delta":
            self.uncaptured = "lengths of messages depend on values, with indices = delta or this selection"

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """See `gathered`. The selection reads the whole bucket twice."""
        count, code = self.count(bucket.numel), self.code.of(bucket)

        def chosen(residual: Tensor) -> Tensor:
            return choose(residual, count, self.selection, world, bucket.start)

        return (yield from gathered(self.feedback, bucket, world, code, chosen))


def gathered(
    feedback: Feedback, bucket: Bucket, world: ExchangeContext, code: SparseCode, chosen: Callable[[Tensor], Tensor]
) -> Exchange:
    """One gather of indices and values, of the entries whose ascending places `chosen` finds in the residual.

    Passes over the whole bucket beside the selection: reading both and writing one for the sum with the residual, one
    writing to clear the gradient. All else touches chosen entries only, the division too.
    """
    with phase("update"):
        residual = feedback.accumulate(bucket, world)
    with phase("select"):
        index = chosen(residual)
    with phase("encode"):
        message, _ = taken(feedback, bucket, index, code)
    messages = yield Gather(message, values=index.numel() * code.value_bytes)
    with phase("decode"):
        return average_of(bucket.grad, messages, code, world.size)


def taken(feedback: Feedback, bucket: Bucket, index: Tensor, code: SparseCode) -> tuple[Tensor, Tensor]:
    """The message of the residual's entries at the ascending places `index`, and their values as they arrive, fp32.

    They leave the residual; what rounding cuts off stays.
    """
    residual = feedback.slice(bucket)
    if kernels.usable(residual):
        from wirebench.compressors.kernels.entries import take

        count, arriving, places = index.numel(), residual.new_empty(index.numel()), None
        if code.indices == "int32":
            message = torch.empty(count * (4 + code.value_bytes), dtype=torch.uint8, device=index.device)
            places = message[: 4 * count].view(torch.int32)
        else:
            message = code.encode_at_once(index, residual.numel(), count * code.value_bytes)
        head = message.numel() - count * code.value_bytes
        take(
            residual, index, message[head:].view(code.dtype), places=places, arriving=arriving, rest=residual,
            clear=feedback.masked(bucket),
        )  # fmt: skip
        return message, arriving
    exact = residual.index_select(0, index)
    arriving = exact if code.values == "fp32" else code.rounded(exact)
    kept = None if arriving is exact else (exact - arriving).nan_to_num_(0.0, 0.0, 0.0)
    feedback.sent(bucket, index, kept)
    return code.encode(index, arriving, residual.numel()), arriving


def average_of(grad: Tensor, messages: Sequence[Tensor], code: SparseCode, size: int) -> Tensor:
    """Write the sum of all messages' entries, in their order, over `size` into `grad`; all else becomes 0.

    No place comes twice in one message, so the order of additions is the order of the messages on any device.
    """
    if kernels.usable(grad):
        from wirebench.compressors.kernels.entries import average

        listed = None
        if code.indices != "int32":
            arrived = torch.zeros(1, dtype=torch.int32, device=grad.device)
            listed = code.listed_at_once(messages, [grad.numel()] * len(messages), arrived)
        average(grad, messages, code.dtype, size, listed=listed)
        return grad
    entries = [code.decode(each, grad.numel()) for each in messages]
    grad.zero_()
    for index, values in entries:
        grad.index_add_(0, index, values)
    # A place that several ranks sent is listed once for each. All are read before any is written, so each of them is
    # written the same quotient.
    touched = torch.cat([index for index, _ in entries])
    return grad.index_copy_(0, touched, grad.index_select(0, touched).div_(size))
