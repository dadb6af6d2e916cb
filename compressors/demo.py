"""DeMo: each rank sends the strongest frequencies of its own momentum, and the sign of their average is the update.

Peng, Quesnelle and Kingma, "DeMo: Decoupled Momentum Optimization", arXiv 2411.19870, Algorithm 1; constants and
details of its authors' code (bloc97/DeMo, `demo.py`).
"""

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.bits.packing import bytes12, pack12, unpack12
from wirebench.compressors.common.lion import signs
from wirebench.compressors.sparse.frequencies import WIDEST, Frequencies, all_cosines, frequencies_of
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.error_memory import VELOCITY, ErrorMemory
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather

VALUE_BYTES = 4


class DeMo(Method):
    """d <- beta d + g; the k largest frequencies of every block of d leave it, and are averaged over the ranks.

    chunk  longest side of a block; a side is cut into the longest equal parts, so nothing is padded. Vectors have
           blocks of one row
    k      frequencies of a block that are sent, all of a smaller one
    beta   of the momentum d, each rank's own: what is not sent stays in it, and fades

    A frequency is averaged over those ranks that sent it, not over all, as in the authors' code. What it returns is the
    sign of the average, transformed back: an update for plain SGD (makes_update), whose weight decay is decoupled as
    the authors' is. The learning rate is the step of every element, about as large as for Lion.

    What is the authors': the algorithm and its constants. What is not: a frequency's place takes 12 bits (theirs 64);
    sums go in rank order, so that every run gives the same bits; the learning rate multiplies the signs alone, where
    theirs also weighs each gradient in d, which makes no difference while the rate stays the same; a kernel of a
    convolution is a matrix of its output channels.

    All ranks must compute alike, as with `powersgd`: a frequency near 0 has the sign of its rounding.

    Memory: the momentum, 1 d; while it works the spectrum, counts and signs, 3 d.
    """

    owns_momentum = True
    makes_update = True
    uncaptured = ""

    def __init__(self, chunk: int = WIDEST, k: int = 32, beta: float = 0.999) -> None:
        super().__init__()
        if not 1 <= chunk <= WIDEST:
            raise ValueError(f"chunk lies in 1 to {WIDEST}: 12 bits name a place in a block, got {chunk}")
        if not 1 <= k <= chunk * chunk:
            raise ValueError(f"k lies in 1 to chunk x chunk = {chunk * chunk}, got {k}")
        if not 0 <= beta < 1:
            raise ValueError(f"beta lies in [0, 1), got {beta:g}")
        self.chunk, self.k, self.beta = chunk, k, beta
        self.memory = ErrorMemory(VELOCITY)

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One gather of places and values."""
        blocks, dtype = frequencies_of(bucket, self.chunk, self.k), bucket.wire_dtype or torch.float32
        momentum = self.memory.slice(bucket, VELOCITY)
        message, spectrum = _message(momentum, bucket.grad, self.beta, blocks, dtype)
        messages = yield Gather(message, values=message.numel() - bytes12(blocks.total))
        with phase("decode"):
            return _signs(messages, bucket.grad, blocks, dtype, spectrum)

    def wire_bytes(self, numel: int, size: int) -> int:
        """12 bits for the place and 4 bytes for the value of each frequency, in whole blocks."""
        count = min(-(-numel * self.k // self.chunk**2), numel)
        return bytes12(count) + VALUE_BYTES * count

    def sent_share(self, numel: int) -> float:
        """A block's share."""
        return self.k / self.chunk**2


def _message(
    momentum: Tensor, grad: Tensor, beta: float, blocks: Frequencies, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """The message of what is chosen of beta `momentum` + `grad`, which `momentum` becomes without it.

    `grad` is overwritten. And a vector as long as the spectrum, where kernels do not keep it in registers.
    """
    if kernels.usable(grad):
        from wirebench.compressors.kernels.frequencies import send

        with phase("encode"):
            cosines = all_cosines(grad.device)
            return send(momentum, grad, beta, blocks.table, blocks.firsts, blocks.total, cosines, dtype), None
    with phase("update"):
        momentum.mul_(beta).add_(grad)
    with phase("select"):
        spectrum = blocks.forward(momentum)
        within = blocks.choose(spectrum)
        places = blocks.starts + within
    with phase("encode"):
        values = spectrum[places].to(dtype)
        spectrum.zero_().index_copy_(0, places, values.float())
        momentum.sub_(blocks.backward(spectrum, grad))
        return torch.cat((pack12(within), values.view(torch.uint8))), spectrum


def _signs(
    messages: list[Tensor], out: Tensor, blocks: Frequencies, dtype: torch.dtype, total: Tensor | None
) -> Tensor:
    """Write the signs of the elements whose frequencies are averages over the ranks that sent them to `out`.

    total  is overwritten, as long as the spectrum; None with kernels
    """
    if total is None:
        from wirebench.compressors.kernels.frequencies import receive

        receive(out, messages, blocks.table, blocks.firsts, blocks.total, blocks.most, all_cosines(out.device), dtype)
        return out
    count, touched = torch.zeros_like(total.zero_()), []
    for each in messages:
        within, values = _read(each, blocks.total, dtype)
        touched.append(blocks.starts + within)
        total.index_add_(0, touched[-1], values)
        count.index_add_(0, touched[-1], torch.ones_like(values))
    # A place that several ranks sent is listed once for each, and is given the same quotient each time.
    anywhere = torch.cat(touched)
    average = total.index_select(0, anywhere).div_(count.index_select(0, anywhere))
    return signs(blocks.backward(total.index_copy_(0, anywhere, average), out))


def _read(message: Tensor, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(Places within their blocks, values in fp32) of one rank's message."""
    head = bytes12(count)
    return unpack12(message[:head], count), message[head:].clone().view(dtype).float()
