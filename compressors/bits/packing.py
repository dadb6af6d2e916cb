"""Whole numbers of 12 and of 2 bits in bytes, without a bit between them."""

import torch
from torch import Tensor


def pack12(numbers: Tensor) -> Tensor:
    """int64 numbers below 4,096, (n,), as uint8, (ceil(1.5 n),): two in three bytes."""
    pairs = _padded(numbers, 2).view(-1, 2)
    first, second = pairs[:, 0], pairs[:, 1]
    parts = (first >> 4, ((first & 15) << 4) | (second >> 8), second & 255)
    return torch.stack(parts, 1).to(torch.uint8).flatten()[: bytes12(numbers.numel())]


def unpack12(packed: Tensor, count: int) -> Tensor:
    """The `count` numbers that `pack12` was given."""
    triples = _padded(packed, 3).view(-1, 3).to(torch.int64)
    first = (triples[:, 0] << 4) | (triples[:, 1] >> 4)
    second = ((triples[:, 1] & 15) << 8) | triples[:, 2]
    return torch.stack((first, second), 1).flatten()[:count]


def pack2(numbers: Tensor) -> Tensor:
    """int64 numbers below 4, (n,), as uint8, (ceil(n / 4),): four in a byte."""
    fours = _padded(numbers, 4).view(-1, 4)
    return (fours[:, 0] | fours[:, 1] << 2 | fours[:, 2] << 4 | fours[:, 3] << 6).to(torch.uint8)


def unpack2(packed: Tensor, count: int) -> Tensor:
    """The `count` numbers that `pack2` was given."""
    shifts = torch.arange(0, 8, 2, device=packed.device, dtype=torch.uint8)
    return ((packed[:, None] >> shifts) & 3).flatten()[:count].to(torch.int64)


def bytes12(count: int) -> int:
    """The size in bytes of `count` packed numbers of 12 bits."""
    return (3 * count + 1) // 2


def bytes2(count: int) -> int:
    """The size in bytes of `count` packed numbers of 2 bits."""
    return -(-count // 4)


def _padded(numbers: Tensor, multiple: int) -> Tensor:
    missing = -numbers.numel() % multiple
    return torch.nn.functional.pad(numbers, (0, missing)) if missing else numbers
