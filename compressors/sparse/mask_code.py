"""Masks as bytes: the places of a bucket that are sent, from the ranks that chose them.

The message of every rank begins with one byte: how its masks are coded, or that its vector is not finite. If the rank
chose for some of the bucket's L layers, there follow

  L / 8 bytes  flags of these layers
  8 bytes      float64, for each of these layers of which a number is wanted
  the masks    as bits: for each run of neighbouring layers, from the byte of its first place to the byte of its last
               place, so that bytes count from the bucket's beginning; or as gaps between the places (encoding.py)

so that a message can be read without knowing who was to choose.
"""

from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wirebench.compressors.sparse.encoding import BITS, SparseCode, pack_bits, unpack_bits
from wirebench.gradient.flat import Layer

Masks = Literal["bits", "delta", "smaller"]
Run = tuple[int, int]

AS_BITS, AS_GAPS, NOT_FINITE = 0, 1, 2
NUMBER_BYTES = 8
_FEW = 0.3  # share of a mask's bytes up to which it pays to look at those alone that are not 0
_UNPACKED = 1 << 17  # bytes of a mask that are spread out at once: what stays in cache


class Vote(NamedTuple):
    """One rank's choice in a bucket.

    layers   ascending numbers of the bucket's layers that it chose for
    masks    one bit string (uint8) for each run of these
    numbers  one for each of these layers of which a number is wanted
    finite   false: the rank's vector is not finite, and the rest is not read
    """

    layers: Sequence[int] = ()
    masks: Sequence[Tensor] = ()
    numbers: Sequence[float] = ()
    finite: bool = True


class Read(NamedTuple):
    """All ranks' votes: `bits` of the places that any of them chose, and each rank's `numbers` by layer."""

    bits: Tensor
    numbers: list[dict[int, float]]


class Head(NamedTuple):
    """How a message begins: the layers chosen for, the numbers of some of them, its own length, and the masks' form."""

    chosen: Sequence[int]
    numbers: dict[int, float]
    length: int
    form: int = AS_BITS


class MaskCode:
    """Encodes votes on a bucket, and reads all ranks' messages.

    masks  bits: a bit for each place; delta: about a byte for each chosen place; smaller: the shorter of the two
    """

    def __init__(self, masks: Masks = "bits") -> None:
        self.masks = masks
        self._gaps = SparseCode(indices="delta")
        self._bits = SparseCode(indices="bitmap")

    def encode(self, vote: Vote, layers: Sequence[Layer], device: torch.device) -> Tensor:
        """The message of `vote` on a bucket of `layers`, uint8."""
        if not vote.finite:
            return torch.full((1,), NOT_FINITE, dtype=torch.uint8, device=device)
        if not vote.layers:
            return torch.full((1,), AS_BITS, dtype=torch.uint8, device=device)
        form, masks = AS_BITS, torch.cat(list(vote.masks))
        if self.masks != "bits":
            gaps = self._as_gaps(vote, layers)
            if self.masks == "delta" or gaps.numel() < masks.numel():
                form, masks = AS_GAPS, gaps
        head = torch.frombuffer(bytearray(self.head(layers, vote.layers, vote.numbers, form)), dtype=torch.uint8)
        return torch.cat([head.to(device), masks])

    def encode_at_once(self, room: Tensor, head: int, spread: Tensor, layers: Sequence[Layer], least: int) -> Tensor:
        """By kernels, the message of masks as gaps, or the one that is there, where its masks have `least` bytes or
        fewer.

        room    eight bytes of 0, then a message: `head` bytes, of which the first is NOT_FINITE where the rank's vector
                is not finite, and masks; then room for gaps
        spread  a bit for each place of the bucket
        """
        from wirebench.compressors.kernels import index_codes

        message, numel = room[8:], layers[-1].stop - layers[0].start
        arrived, length = room[:8].view(torch.int32).split(1)
        index_codes.gaps_of_bits(spread, numel, message[head:], arrived, length, least, message[:1])
        told = room[4:9].cpu().numpy().tobytes()  # the host waits for the length, and for the message's first byte
        gaps = int.from_bytes(told[:4], "little")
        return message[:1] if told[4] == NOT_FINITE else message[: head + min(gaps, least)]

    def head(
        self, layers: Sequence[Layer], chosen: Sequence[int], numbers: Sequence[float], form: int = AS_BITS
    ) -> bytes:
        """What a message begins with, before the masks; the numbers are of chosen layers."""
        if not chosen:
            return bytes([form])
        flags = np.zeros(len(layers), np.bool_)
        flags[list(chosen)] = True
        packed = np.packbits(flags, bitorder="little").tobytes()
        return bytes([form]) + packed + np.array(numbers, np.float64).tobytes()

    def decode(self, messages: Sequence[Tensor], layers: Sequence[Layer], wanted: Collection[int]) -> Read | None:
        """All ranks' votes on a bucket of `layers`; None if any rank's vector is not finite.

        `wanted` are the numbers of the layers of which the messages hold a number.
        """
        heads = self.read_heads(messages, layers, wanted)
        if heads is None:
            return None
        numel = layers[-1].stop - layers[0].start
        bits = torch.zeros(-(-numel // BITS), dtype=torch.uint8, device=messages[0].device)
        for message, head in zip(messages, heads, strict=True):
            if head.chosen:
                self._unite(bits, message[head.length :], head.form, runs(layers, head.chosen), numel)
        return Read(bits, [head.numbers for head in heads])

    def read_heads(
        self, messages: Sequence[Tensor], layers: Sequence[Layer], wanted: Collection[int]
    ) -> list[Head] | None:
        """How all ranks' messages begin; None if any rank's vector is not finite. `wanted` as in `decode`."""
        length = 1 + -(-len(layers) // BITS)
        firsts = [message[: length + NUMBER_BYTES * len(wanted)] for message in messages]
        data = torch.cat(firsts).cpu().numpy().tobytes()  # the host waits for a GPU once
        heads = []
        for message, first in zip(messages, firsts, strict=True):
            mine, data = data[: first.numel()], data[first.numel() :]
            form = mine[0]
            if form == NOT_FINITE:
                return None
            if message.numel() == 1:
                heads.append(Head((), {}, 1))
                continue
            chosen = [i for i in range(len(layers)) if mine[1 + i // BITS] >> i % BITS & 1]
            numbered = [layer for layer in chosen if layer in wanted]
            stop = length + len(numbered) * NUMBER_BYTES
            read = np.frombuffer(mine[length:stop], np.float64).tolist()
            heads.append(Head(chosen, dict(zip(numbered, read, strict=True)), stop, form))
        return heads

    def expected_bytes(self, share: float, numel: int, layers: int = 1) -> int:
        """Bytes of a message that chose a `share` of the places of `numel` elements in `layers` layers, or near it."""
        as_bits, as_gaps = -(-numel // BITS), self._gaps.expected_index_bytes(int(share * numel), numel)
        masks = {"bits": as_bits, "delta": as_gaps, "smaller": min(as_bits, as_gaps)}[self.masks]
        return 1 + -(-layers // BITS) + masks

    def _as_gaps(self, vote: Vote, layers: Sequence[Layer]) -> Tensor:
        bounds = runs(layers, vote.layers)
        index = [places(mask) + start // BITS * BITS for mask, (start, _) in zip(vote.masks, bounds, strict=True)]
        return self._gaps.encode_indices(torch.cat(index), layers[-1].stop - layers[0].start)

    def _unite(self, bits: Tensor, masks: Tensor, form: int, bounds: Sequence[Run], numel: int) -> None:
        """Add the places of one rank's masks to `bits`."""
        if form == AS_GAPS:
            index = self._gaps.decode_indices(masks, numel)
            bits |= self._bits.encode_indices(index, numel)[: bits.numel()]
            return
        for start, stop in bounds:
            first, last = start // BITS, -(-stop // BITS)
            bits[first:last] |= masks[: last - first]
            masks = masks[last - first :]


def runs(layers: Sequence[Layer], chosen: Sequence[int]) -> list[Run]:
    """Runs of neighbours among the `chosen` layers, (start, stop) from the beginning of the first of `layers`.

    Gaps between them are part of a run: its mask is 0 there.
    """
    joined: list[Run] = []
    begin = layers[0].start
    for place, number in enumerate(chosen):
        start, stop = layers[number].start - begin, layers[number].stop - begin
        if place and chosen[place - 1] == number - 1:
            start = joined.pop()[0]
        joined.append((start, stop))
    return joined


def pack(flags: Tensor) -> Tensor:
    """The same bytes as encoding.pack_bits; on a CPU an order of magnitude faster."""
    if flags.device.type != "cpu":
        return pack_bits(flags)
    return torch.from_numpy(np.packbits(flags.numpy(), bitorder="little"))


def places(bits: Tensor) -> Tensor:
    """The places of the ones in a bit string, int64, ascending."""
    if bits.device.type != "cpu":
        return torch.nonzero(unpack_bits(bits, bits.numel() * BITS)).squeeze(1)
    # NumPy takes a third of the time of torch.nonzero where few are set, a tenth where half are.
    code = bits.numpy()
    filled = np.flatnonzero(code != 0)
    if filled.size <= _FEW * code.size:
        index = np.flatnonzero(_spread(code[filled]))
        return torch.from_numpy((filled << 3)[index >> 3] + (index & 7))  # a byte, and a bit in it
    parts = []
    for start in range(0, code.size, _UNPACKED):
        index = np.flatnonzero(_spread(code[start : start + _UNPACKED]))
        index += start * BITS
        parts.append(index)
    return torch.from_numpy(np.concatenate(parts))


def _spread(code: np.ndarray) -> np.ndarray:
    """The bits of `code`, one to a byte."""
    return np.unpackbits(code, bitorder="little").view(np.bool_)
