"""Small whole numbers, several to a word of 32 bits, so that adding words adds the numbers.

A field of b bits holds -2^(b-1) .. 2^(b-1) - 1, and a word the sum of its fields, each times the power of two of its
place. Words of several ranks are added as int32, which every engine can do: as long as the sums fit their fields, no
field spoils its neighbour. (gloo, NCCL and Horovod have no int16, and Horovod does not add int8.)

The fields of a word lie far apart: field f of a block's words holds the f-th part of the block. So packing and
unpacking are a few operations on long vectors instead of one on every few elements.
"""

import torch
from torch import Tensor

from wirebench.compressors.bits.blocks import block_numel
from wirebench.utils.device_tables import device_table

WORD_BITS, WORD_BYTES = 32, 4


def width_for(largest: int) -> int:
    """Bits of a field for whole numbers from -largest to largest."""
    return (2 * largest).bit_length()


class Fields:
    """Words of fields of `width` bits on `device`; a vector of n numbers takes ceil(n / per_word) words.

    base  offset of the numbers that are packed: they are larger than those that are meant by this much
    """

    def __init__(self, width: int, device: torch.device, base: int = 0) -> None:
        assert 1 <= width <= WORD_BITS, "a field fits into a word"
        self.width, self.base, self.per_word = width, base, WORD_BITS // width
        self.block_numel = block_numel(device, self.per_word)
        self._up, self._to_top, self._down = _shifts(width, device)
        self._bases, self._halves = _in_all(base, width, device), _in_all(1 << (width - 1), width, device)

    def words(self, numel: int) -> int:
        """Words of `numel` numbers."""
        return -(-numel // self.per_word)

    def split(self, words: Tensor) -> tuple[Tensor, ...]:
        """The words of each block."""
        return words.split(self.block_numel // self.per_word)

    def scratch(self, numel: int, device: torch.device) -> Tensor:
        """An int32 vector for `pack` and `unpack` of the blocks of `numel` elements."""
        return torch.empty(self.words(min(numel, self.block_numel)) * self.per_word, dtype=torch.int32, device=device)

    def pack(self, numbers: Tensor, words: Tensor, scratch: Tensor) -> None:
        """Write a block's `numbers`, of any type, without their fractions, to its `words`; overwrites `scratch`.

        The numbers may lie at the beginning of `scratch` already.
        """
        flat = self._fitting(scratch, words)
        if flat.numel() > numbers.numel():
            flat[numbers.numel() :] = self.base
        if flat.data_ptr() != numbers.data_ptr():
            flat[: numbers.numel()].copy_(numbers)
        planes = flat.view(self.per_word, -1)
        torch.bitwise_left_shift(planes, self._up, out=planes)
        torch.sum(planes, 0, dtype=torch.int32, out=words)
        if self.base:
            words.sub_(self._bases)

    def unpack(self, words: Tensor, scratch: Tensor) -> Tensor:
        """The numbers of a block's `words`, int32, written to `scratch`; with them 0s that filled up its last words."""
        flat = self._fitting(scratch, words)
        planes = flat.view(self.per_word, -1)
        # Negative fields borrowed from those above. With half of the range on every field none is negative; flipping
        # a field's top bit takes the half off again, without a borrow.
        torch.bitwise_left_shift((words + self._halves).bitwise_xor_(self._halves), self._to_top, out=planes)
        planes.bitwise_right_shift_(self._down)
        return flat

    def _fitting(self, scratch: Tensor, words: Tensor) -> Tensor:
        needed = words.numel() * self.per_word
        return scratch if scratch.numel() == needed else scratch[:needed]


# Tensors on the device cost a call less than Python's numbers. They are made once: each copy makes a GPU wait.
@device_table()
def _shifts(width: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Bits from each field's place to the bottom of a word, to its top; and from the top to the bottom."""
    places = torch.arange(WORD_BITS // width, dtype=torch.int32, device=device)[:, None] * width
    return places, WORD_BITS - width - places, torch.tensor(WORD_BITS - width, dtype=torch.int32, device=device)


@device_table()
def _in_all(number: int, width: int, device: torch.device) -> Tensor:
    """The word with `number` in every field, int32, without dimensions."""
    word = sum(number << (width * place) for place in range(WORD_BITS // width))
    signed = (word + (1 << (WORD_BITS - 1))) % (1 << WORD_BITS) - (1 << (WORD_BITS - 1))
    return torch.tensor(signed, dtype=torch.int32, device=device)
