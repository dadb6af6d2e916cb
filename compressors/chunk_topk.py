"""Top-k of every chunk, as 12-bit places and 2-bit values: SparseLoCo's compression of what local steps have done.

Sarfi et al., "Communication Efficient LLM Pre-training with SparseLoCo", arXiv 2508.15706: error feedback with a decay,
the largest 64 entries of each 4,096, and two bits for each value. The values have the same constants as in the authors'
code (tplr-ai/templar, `compress.py`). That code stores a value in a byte; here values are packed.
"""

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.compressors.bits.packing import bytes2, bytes12, pack2, pack12, unpack2, unpack12
from wirebench.compressors.common.feedback import decayed, kept_energy
from wirebench.compressors.sparse.chunks import Chunks, chunks_of
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Keeps, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather

BINS, SIGMAS, VALUE_BYTES = 4, 6.0, 4
MOST = 4096
"""Places that 12 bits can tell apart."""


class ChunkTopK(Method):
    """Each rank sends the k largest of every `chunk` neighbouring entries of e; the average is over all ranks.

    chunk  entries, at most 4,096; a layer's last chunk may be shorter, and sends in proportion
    k      entries of a whole chunk that are sent
    beta   e <- beta e + g before an exchange, e <- e - sent after it; below 1, the residual fades slowly

    A value is one of four for each layer: of what is sent, with mean m and standard deviation s (divided by n), bins
    are centred on m - 3 s, m - 1.5 s, m and m + 1.5 s, the outer ones without end, and a value stands for the mean of
    its bin. What that cuts off stays in e. The authors divide by n - 1, and cut a matrix into squares of 64 x 64; here
    a chunk is as many neighbours of a layer, in the order of its memory.

    Memory: the residual e, 1 d; a padded copy of it while entries are chosen. Measures: kept_energy, the squares of
    what stays in e over the squares of what was to be sent.
    """

    keeps: Keeps = "rounded"
    bounded_by = "k"
    uncaptured = ""

    def __init__(self, chunk: int = MOST, k: int = 64, beta: float = 0.95) -> None:
        super().__init__()
        if not 1 <= chunk <= MOST:
            raise ValueError(f"chunk lies in 1 to {MOST}, which 12 bits tell apart, got {chunk}")
        if not 1 <= k <= chunk:
            raise ValueError(f"k lies in 1 to chunk = {chunk}, got {k}")
        if not 0 < beta <= 1:
            raise ValueError(f"beta lies in (0, 1], got {beta}")
        self.chunk, self.k, self.beta = chunk, k, beta
        if beta < 1:
            self.keeps, self.fades = "partly", True

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """One gather of tables, places and values."""
        chunks = chunks_of(bucket, self.chunk, self.k)
        with phase("update"):
            waiting = decayed(self.memory.slice(bucket), self.beta, bucket.grad)
        with phase("select"):
            within = chunks.choose(waiting)
        with kept_energy(self.measures, waiting, world.measuring), phase("encode"):
            message = _encoded(waiting, within, chunks)
        messages = yield Gather(message, values=bytes2(chunks.total))
        with phase("decode"):
            return _average(bucket.grad, messages, chunks)

    def wire_bytes(self, numel: int, size: int) -> int:
        """12 bits for the place and 2 for the value of each chosen entry, and a table."""
        count = -(-numel * self.k // self.chunk)
        return bytes12(count) + bytes2(count) + BINS * VALUE_BYTES

    def sent_share(self, numel: int) -> float:
        """A chunk's share."""
        return self.k / self.chunk


def _encoded(waiting: Tensor, within: Tensor, chunks: Chunks) -> Tensor:
    """The message of the entries of `waiting` at these places within their chunks; what arrives leaves `waiting`."""
    if kernels.usable(waiting):
        from wirebench.compressors.kernels.chunk_messages import with_codes

        return with_codes(
            waiting, within, chunks.starts, chunks.firsts, chunks.layers, chunks.chunk, chunks.rows, chunks.k, SIGMAS
        )
    places = chunks.places(within)
    values = waiting.index_select(0, places)
    codes, table = _quantised(values, chunks)
    kept = values - table[chunks.layers, codes]
    waiting.index_copy_(0, places, kept.nan_to_num_(0.0, 0.0, 0.0))
    return torch.cat((table.flatten().view(torch.uint8), pack12(within), pack2(codes)))


def _quantised(values: Tensor, chunks: Chunks) -> tuple[Tensor, Tensor]:
    """Each value's bin, int64 (total,), and by layer the bins' means, fp32 (layers, BINS)."""
    of, sizes = chunks.layers, chunks.sizes.to(values.dtype)

    def mean(numbers: Tensor) -> Tensor:
        return chunks.sums(numbers, torch.zeros_like(of), 1) / sizes

    centred = values - mean(values)[of]
    width = SIGMAS / BINS * mean(centred.square()).sqrt_()[of]
    # Values that are all alike have no width, and share a bin. NaN has any bin: its mean is NaN.
    codes = (centred / width.clamp_min(1e-38) + BINS / 2).round_().clamp_(0, BINS - 1).nan_to_num_(0.0).to(torch.int64)
    sums, counts = chunks.sums(values, codes, BINS), chunks.sums(torch.ones_like(values), codes, BINS)
    return codes, (sums / counts.clamp_min(1)).view(-1, BINS)


def _average(out: Tensor, messages: list[Tensor], chunks: Chunks) -> Tensor:
    """Write the average of all messages to `out`, and return it."""
    if kernels.usable(out):
        from wirebench.compressors.kernels.chunk_messages import decode_codes

        decode_codes(
            out, messages, chunks.starts, chunks.lengths, chunks.firsts, chunks.layers, len(chunks.spans), chunks.k,
            chunks.size,
        )  # fmt: skip
        return out
    out.zero_()
    for each in messages:
        _add(out, each, chunks)
    return out.div_(len(messages))


def _add(total: Tensor, message: Tensor, chunks: Chunks) -> None:
    """Add one rank's entries to `total`."""
    head, places = BINS * VALUE_BYTES * len(chunks.spans), bytes12(chunks.total)
    table = message[:head].clone().view(torch.float32).view(-1, BINS)
    within = unpack12(message[head : head + places], chunks.total)
    codes = unpack2(message[head + places :], chunks.total)
    total.index_add_(0, chunks.places(within), table[chunks.layers, codes].to(total.dtype))
