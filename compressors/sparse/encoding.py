"""How chosen entries become bytes: a value type and an index coding, the same choices for every sparse method.

So that "density 0.1 %" has one comparable byte count. The bytes of n chosen of d entries:

  values   fp32, fp16, bf16   4, 2, 2 n
  indices  int32              4 n
           bitmap             d / 8, up to 3 more
           delta              4, and for every gap between two a byte for each 7 bits of it (LEB128):
                              about 2 n at 0.1 %, n at 2 %

Indices come ascending, without repeats, and before the values, in a multiple of 4 bytes where values need it.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from wirebench.compressors import kernels
from wirebench.gradient.flat import Bucket

Values = Literal["fp32", "fp16", "bf16"]
Indices = Literal["int32", "bitmap", "delta"]
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

COUNT_BYTES = 4  # in front of delta codes, whose length tells nothing
GAP_BITS = 7
MAX_GAP_BYTES = 5  # 31 bits in sevens
BITS = 8


class SparseCode:
    """Encodes (indices, values) of a vector of `numel` elements into bytes, and back."""

    def __init__(self, values: Values = "fp32", indices: Indices = "int32") -> None:
        self.values, self.indices = values, indices
        self.dtype = DTYPES[values]

    @property
    def value_bytes(self) -> int:
        """The size of a value in bytes."""
        return self.dtype.itemsize

    def of(self, bucket: Bucket) -> "SparseCode":
        """The code for a bucket's values: fp32 values of a bfloat16 gradient travel as bf16."""
        return SparseCode("bf16", self.indices) if bucket.wire_dtype and self.values == "fp32" else self

    def rounded(self, values: Tensor) -> Tensor:
        """fp32 `values` as they arrive, fp32. What is too large for fp16 arrives as its largest number."""
        return self._narrow(values).float()

    def encode(self, index: Tensor, values: Tensor, numel: int) -> Tensor:
        """One message, uint8, of fp32 `values` at the ascending int64 places `index` below `numel` < 2^31."""
        return torch.cat([self.encode_indices(index, numel), self._narrow(values).view(torch.uint8)])

    def decode(self, message: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """(int64 indices, fp32 values) of what `encode` made."""
        if self.indices == "int32":
            head = message.numel() // (4 + self.value_bytes) * 4
        elif kernels.usable(message):
            return self._decode_at_once(message, numel)
        else:
            head = self._head_bytes(message, numel)
        index = self.decode_indices(message[:head], numel)
        return index, _read(message[head:], self.dtype).float()

    def encode_indices(self, index: Tensor, numel: int) -> Tensor:
        """The indices alone, uint8, a multiple of 4 bytes."""
        assert numel < 2**31, "indices are 31 bits wide"
        if self.indices == "int32":
            return index.int().view(torch.uint8)
        if kernels.usable(index):
            return self.encode_at_once(index, numel, 0)
        return _bitmap(index, numel) if self.indices == "bitmap" else _gaps(index)

    def encode_at_once(self, index: Tensor, numel: int, more: int) -> Tensor:
        """By kernels, as bitmap or delta: the indices, uint8, and `more` bytes behind them that are not written."""
        from wirebench.compressors.kernels import index_codes

        if self.indices == "delta":
            return index_codes.gaps(index, more)
        return index_codes.bitmaps(index[None], [index.numel()], numel, more).view(-1)

    def _decode_at_once(self, message: Tensor, numel: int) -> tuple[Tensor, Tensor]:
        """`decode` by kernels, of bitmap or delta; for delta the host waits for the number of entries."""
        from wirebench.compressors.kernels import index_codes

        if self.indices == "delta":
            count: int = _read(message[:COUNT_BYTES], torch.int32).tolist()[0]
            head = message.numel() - count * self.value_bytes
        else:
            head = _padded(-(-numel // BITS))
            count = (message.numel() - head) // self.value_bytes
        rows = index_codes.places(message, [message[:head]], [count], self.indices == "delta")
        return rows[0].long(), _read(message[head:], self.dtype).float()

    def listed_at_once(
        self, messages: Sequence[Tensor], numels: Sequence[int], arrived: Tensor, bases: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor] | None:
        """By kernels, `listed` of kernels/index_codes.py, of messages of vectors of `numels` elements; None for int32.

        arrived  int32 (1,), a 0
        """
        if self.indices == "int32":
            return None
        from wirebench.compressors.kernels import index_codes

        heads = [_padded(-(-numel // BITS)) for numel in numels] if self.indices == "bitmap" else None
        return index_codes.listed(arrived, messages, self.value_bytes, heads, bases)

    def decode_indices(self, code: Tensor, numel: int) -> Tensor:
        """int64 indices of what `encode_indices` made."""
        return self.read_indices(code, numel).long()

    def read_indices(self, code: Tensor, numel: int) -> Tensor:
        """As `decode_indices`, but int32 where kernels work."""
        if self.indices == "int32":
            index = _read(code, torch.int32)
            return index if kernels.usable(code) else index.long()
        if kernels.usable(code):
            from wirebench.compressors.kernels import index_codes

            gaps = self.indices == "delta"
            counts = _read(code[:COUNT_BYTES], torch.int32).tolist() if gaps else None
            return index_codes.places(code, [code], counts, gaps)[0]
        if self.indices == "bitmap":
            return torch.nonzero(unpack_bits(code, numel)).squeeze(1)
        return _from_gaps(code)

    def expected_bytes(self, count: int, numel: int) -> int:
        """Bytes of a message of `count` entries that lie as if drawn at random; exact but for delta."""
        return self.expected_index_bytes(count, numel) + self.value_bytes * count

    def expected_index_bytes(self, count: int, numel: int) -> int:
        """Bytes of the indices alone, as `expected_bytes`."""
        if self.indices == "int32":
            return 4 * count
        if self.indices == "bitmap":
            return _padded(-(-numel // BITS))
        # A gap needs another byte with the probability that the next 2^7, 2^14 ... places hold no chosen one.
        density = min(count / max(numel, 1), 1.0)
        gap_bytes = sum((1 - density) ** (2 ** (GAP_BITS * n) if n else 0) for n in range(MAX_GAP_BYTES))
        return _padded(COUNT_BYTES + round(count * gap_bytes))

    def _narrow(self, values: Tensor) -> Tensor:
        if self.values == "fp16":
            largest = torch.finfo(torch.float16).max
            # Infinity stays, so that all ranks see it.
            values = torch.where(values.isinf(), values, values.clamp(-largest, largest))
        return values.to(self.dtype)

    def _head_bytes(self, message: Tensor, numel: int) -> int:
        """Bytes of the index part of a message."""
        if self.indices == "bitmap":
            return _padded(-(-numel // BITS))
        count = int(_read(message[:COUNT_BYTES], torch.int32))
        return message.numel() - count * self.value_bytes


def _read(code: Tensor, dtype: torch.dtype) -> Tensor:
    """The bytes `code` as numbers; a message that was received among others may lie at any byte."""
    return (code.clone() if code.storage_offset() % dtype.itemsize else code).view(dtype)


def pack_bits(flags: Tensor) -> Tensor:
    """Eight flags (bool) a byte, uint8, the first in the lowest bit; the tail's unused bits are 0."""
    whole = torch.nn.functional.pad(flags.view(torch.uint8), (0, -flags.numel() % BITS)).view(-1, BITS)
    packed = whole[:, 0].clone()
    for bit in range(1, BITS):
        packed |= whole[:, bit] << bit
    return packed


def unpack_bits(code: Tensor, numel: int) -> Tensor:
    """The first `numel` flags (bool) of what `pack_bits` made."""
    shifts = torch.arange(BITS, dtype=torch.uint8, device=code.device)
    return ((code[:, None] >> shifts) & 1).view(-1)[:numel].bool()


def _padded(count: int) -> int:
    return -(-count // 4) * 4


def _bitmap(index: Tensor, numel: int) -> Tensor:
    """One bit for every element; written byte by byte, so that few chosen ones cost little more than the zeros."""
    code = torch.zeros(_padded(-(-numel // BITS)), dtype=torch.uint8, device=index.device)
    bits = (1 << (index % BITS)).to(torch.uint8)
    # Distinct bits of one byte add up without carry.
    return code.index_add_(0, index // BITS, bits)


def _gaps(index: Tensor) -> Tensor:
    """The count, int32, then every gap (index - the one before - 1) in sevens of bits, the lowest first."""
    gaps = torch.diff(index, prepend=index.new_full((1,), -1)) - 1
    sizes = torch.ones_like(gaps)
    for number in range(1, MAX_GAP_BYTES):
        sizes += gaps >= 1 << (GAP_BITS * number)
    ends = sizes.cumsum(0)
    total = int(ends[-1]) if index.numel() else 0
    code = torch.zeros(_padded(COUNT_BYTES + total), dtype=torch.uint8, device=index.device)
    code[:COUNT_BYTES] = torch.tensor([index.numel()], dtype=torch.int32, device=index.device).view(torch.uint8)
    starts = ends - sizes + COUNT_BYTES
    for number in range(MAX_GAP_BYTES):
        wanted = sizes > number
        more = (sizes[wanted] > number + 1) << GAP_BITS
        septet = (gaps[wanted] >> (GAP_BITS * number)) & (2**GAP_BITS - 1)
        code[starts[wanted] + number] = (septet | more).to(torch.uint8)
    return code


def _from_gaps(code: Tensor) -> Tensor:
    count = int(_read(code[:COUNT_BYTES], torch.int32))
    septets = code[COUNT_BYTES:].long()
    ends = torch.nonzero(septets < 1 << GAP_BITS).squeeze(1)[:count]  # what pads the end comes after them
    if not count:
        return ends
    septets = septets[: int(ends[-1]) + 1]
    owner = torch.zeros_like(septets)
    owner[ends[:-1] + 1] = 1
    owner = owner.cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends[:-1] + 1])
    place = torch.arange(septets.numel(), device=code.device) - starts[owner]
    gaps = torch.zeros_like(ends).index_add_(0, owner, (septets & (2**GAP_BITS - 1)) << (GAP_BITS * place))
    return (gaps + 1).cumsum(0) - 1
