"""fp32 and bf16 numbers without loss: the exponents Huffman-coded, signs and mantissas uncoded.

Gradients of neural networks have few exponents, of 2.7 bits of entropy, and mantissas that look random (ZipCCL,
arXiv 2604.27844). So an exponent's byte is put apart, and zlib codes all of them with Huffman's code alone: they repeat
nothing that a search would find.
"""

import zlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BITS: dict[torch.dtype, int] = {torch.float32: 32, torch.bfloat16: 16}
"""Numbers with an exponent of 8 bits."""
HEAD_BYTES = 8
MEMORY = 9
"""zlib's largest: a code for each 32,768 exponents."""


def encoded(values: Tensor) -> bytes:
    """The message of fp32 or bf16 `values`, (n,), on the CPU: bytes of the exponents' code, that code, all else."""
    planes = _planes(values)
    coder = zlib.compressobj(zlib.Z_BEST_SPEED, zlib.DEFLATED, -zlib.MAX_WBITS, MEMORY, zlib.Z_HUFFMAN_ONLY)
    code = coder.compress(planes[:, -1].tobytes()) + coder.flush()
    return len(code).to_bytes(HEAD_BYTES, "little") + code + planes[:, :-1].tobytes()


def decoded(message: bytes, dtype: torch.dtype) -> Tensor:
    """The numbers that `encoded` was given, to the bit."""
    stop = HEAD_BYTES + int.from_bytes(message[:HEAD_BYTES], "little")
    exponents = zlib.decompress(message[HEAD_BYTES:stop], -zlib.MAX_WBITS)
    planes = np.empty((len(exponents), BITS[dtype] // 8), np.uint8)
    planes[:, -1] = np.frombuffer(exponents, np.uint8)
    planes[:, :-1] = np.frombuffer(message, np.uint8, offset=stop).reshape(len(planes), planes.shape[1] - 1)
    turned = planes.view(_words(dtype))[:, 0]
    bits = (turned >> 1) | (turned << (BITS[dtype] - 1))
    return torch.from_numpy(bits.view(_words(dtype, signed=True))).view(dtype)


def entropy_bits(values: Tensor) -> tuple[float, float]:
    """Bits of entropy of an exponent, and of the byte that has the sign and the first seven bits of the mantissa."""
    planes = _planes(values.bfloat16() if values.dtype == torch.float32 else values)
    return _entropy(planes[:, 1]), _entropy(planes[:, 0])


def bound(dtype: torch.dtype, exponent_bits: float) -> float:
    """The most that a code of exponents shortens messages by, where signs and mantissas are random."""
    return BITS[dtype] / (BITS[dtype] - 8 + exponent_bits)


def _planes(values: Tensor) -> NDArray[np.uint8]:
    """The numbers' bytes, (n, bytes), the last one the exponent: turned by a bit, so that the sign is the lowest."""
    bits = values.contiguous().view(torch.int32 if values.dtype == torch.float32 else torch.int16).numpy()
    bits = bits.view(_words(values.dtype))
    turned = (bits << 1) | (bits >> (BITS[values.dtype] - 1))
    return turned.view(np.uint8).reshape(len(turned), BITS[values.dtype] // 8)


def _words(dtype: torch.dtype, signed: bool = False) -> str:
    """Numpy's name of whole numbers of this size, the lowest byte first."""
    return f"<{'i' if signed else 'u'}{BITS[dtype] // 8}"


def _entropy(symbols: NDArray[np.uint8]) -> float:
    shares = np.bincount(symbols, minlength=256) / max(len(symbols), 1)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())
