"""A sum of one bit for each element, both ways, with what is cut off kept at both ends.

Tang et al., "1-bit Adam", ICML 2021, arXiv 2102.02888, section 4 and Figure 3: each rank compresses what it has for the
rank that adds it up, which compresses the sum for all. A group of elements is one layer's part of a rank's share; its
bits stand for plus and minus the group's mean magnitude, the compressor of 0/1 Adam's paper.
"""

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from wirebench.compressors import kernels
from wirebench.compressors.bits.blocks import Groups, Run, by_layer, mean_magnitudes
from wirebench.compressors.bits.fields import WORD_BITS, WORD_BYTES
from wirebench.compressors.bits.signs import Signs
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.error_memory import ErrorMemory
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather, Route
from wirebench.utils.device_tables import device_table

SERVED = "served"
"""The memory, beside the residual, of what compressing sums has cut off; it is of the sum, not of an average."""


class Share(NamedTuple):
    """The share that one rank sums: a slice of the bucket, and the groups in it."""

    piece: slice
    groups: Groups


def onebit_average(memory: ErrorMemory, bucket: Bucket, world: ExchangeContext, out: Tensor) -> Exchange:
    """A route and a gather: write the average over ranks of their residuals, as it arrives, to `out`; returns it.

    What is cut off stays in the residual of the rank that sent it, and in SERVED of the rank that added it up. Where
    kernels work, SERVED is 0 outside this rank's share already (`steps.begin`).
    """
    if kernels.usable(out):
        return (yield from _average_at_once(memory, bucket, world, out))
    waiting, served = memory.slice(bucket), memory.slice(bucket, SERVED)
    shares = shares_of(by_layer(bucket), world.size)
    piece, groups = shares[world.rank]
    words = _words(shares[0])
    with phase("encode"):
        total = served[piece].clone()
        served[piece] = 0
        # In another cut of the buckets, or another world, other places were this rank's to add up. What it kept of
        # them travels as its own.
        waiting.add_(served)
        served.zero_()
        parts = [_coded(waiting[share.piece], share.groups, words) for share in shares]
    answers = yield Route(parts, sum(_words(share) for share in shares), [len(parts[world.rank])] * world.size)
    with phase("decode"):
        total.add_(_average(answers, groups, words, torch.empty_like(total)), alpha=world.size)
    with phase("encode"):
        # All ranks' messages are of one length, as engines gather such ones fastest.
        message = _coded(total, groups, words)
        message = pad(message, (0, words + max(len(share.groups) for share in shares) - message.numel()))
        served[piece] = total
    messages = yield Gather(message, values=_words(shares[world.rank]))
    with phase("decode"):
        for share, each in zip(shares, messages, strict=True):
            _average([each], share.groups, words, out[share.piece])
        return out.div_(world.size)


def _average_at_once(memory: ErrorMemory, bucket: Bucket, world: ExchangeContext, out: Tensor) -> Exchange:
    """As many kernels for any number of ranks and layers."""
    from wirebench.compressors.kernels import fields

    waiting, shares = memory.slice(bucket), shares_of(by_layer(bucket), world.size)
    piece, groups = shares[world.rank]
    total, table = memory.slice(bucket, SERVED)[piece], _places_of(by_layer(bucket), world.size, out.device)
    words, most = _words(shares[0]), max(len(each.groups) for each in shares)
    share = words * WORD_BITS
    with phase("encode"):
        buffer = torch.empty((world.size, words + most), dtype=torch.int32, device=out.device)
        scales = mean_magnitudes(waiting, table.groups)
        buffer.view(-1).index_copy_(0, table.scales, scales.view(torch.int32))
        fields.encode_signs(
            waiting, table.groups, buffer, pair=(scales, None), zeros_are_negative=False, width=1, base=0, share=share
        )
        ends = [words + len(each.groups) if each.groups else 0 for each in shares]
        parts = [row[:end] for row, end in zip(buffer, ends, strict=True)]
    answers = yield Route(parts, sum(_words(each) for each in shares), [len(parts[world.rank])] * world.size)
    message = table.nothing
    if groups:
        with phase("decode"):
            arrived = kernels.stacked(answers)
            fields.decode_signs(arrived, groups, arrived[:, words:].view(torch.float32), None, total, times=world.size)
        with phase("encode"):
            scales = mean_magnitudes(total, groups)
            code = torch.empty((1, words), dtype=torch.int32, device=out.device)
            fields.encode_signs(
                total, groups, code, pair=(scales, None), zeros_are_negative=False, width=1, base=0, share=share
            )
            message = torch.cat((code[0], scales.view(torch.int32), table.nothing[words + len(groups) :]))
    messages = yield Gather(message, values=_words(shares[world.rank]))
    with phase("decode"):
        arrived = kernels.stacked(messages)
        high = arrived[:, words:].view(torch.float32)
        fields.decode_shares(arrived, table.groups, high, table.before, out, share, world.size)
    return out


class _Places(NamedTuple):
    """Of all shares: their groups; where each group's scale lies among the rows of messages, and how many groups begin
    before each share, int64; and a message of zeros.
    """

    groups: Groups
    scales: Tensor
    before: Tensor
    nothing: Tensor


@device_table()
def _places_of(by_layers: Groups, size: int, device: torch.device) -> _Places:
    shares = shares_of(by_layers, size)
    words, most = _words(shares[0]), max(len(share.groups) for share in shares)
    counts = [len(share.groups) for share in shares]
    scales = [row * (words + most) + words + place for row, count in enumerate(counts) for place in range(count)]
    before = [sum(counts[:row]) for row in range(len(counts))]
    groups = tuple(run for share in shares for run in share.groups)
    nothing = torch.zeros(words + most, dtype=torch.int32, device=device)
    return _Places(groups, torch.tensor(scales, device=device), torch.tensor(before, device=device), nothing)


def onebit_bytes(numel: int, size: int) -> int:
    """Payload in bytes of a rank for one layer of `numel` elements: both messages."""
    shares = shares_of((Run(numel, 1),), size)
    sent = [_words(shares[0]) + len(share.groups) for share in shares if share.groups]
    return WORD_BYTES * (sum(sent) + max(sent))


@lru_cache(maxsize=1024)
def shares_of(groups: Groups, size: int) -> tuple[Share, ...]:
    """Each rank's share: about equal parts, of whole words; the last may be shorter, or empty."""
    numel = sum(run.width * run.groups for run in groups)
    each = -(-numel // (size * WORD_BITS)) * WORD_BITS
    edges = [min(rank * each, numel) for rank in range(size + 1)]
    shares = []
    for begin, end in pairwise(edges):
        inside, place = [], 0
        for run in groups:
            width = min(place + run.width, end) - max(place, begin)
            if width > 0:
                inside.append(Run(width, 1))
            place += run.width
        shares.append(Share(slice(begin, end), tuple(inside)))
    return tuple(shares)


def _words(share: Share) -> int:
    return -(-(share.piece.stop - share.piece.start) // WORD_BITS)


def _coded(values: Tensor, groups: Groups, places: int) -> Tensor:
    """The message of `values`, int32: `places` words of bits, then scales; the quantisation error stays in `values`."""
    if not groups:
        return values.new_empty(0, dtype=torch.int32)
    scales = mean_magnitudes(values, groups)
    words = Signs(groups, values.device).encode(values, (scales, None))
    return torch.cat((pad(words, (0, places - words.numel())), scales.view(torch.int32)))


def _average(messages: list[Tensor], groups: Groups, places: int, out: Tensor) -> Tensor:
    """Write the average of what the messages stand for to `out`."""
    if groups:
        count, end = -(-out.numel() // WORD_BITS), places + len(groups)
        pairs = [(each[:count], each[places:end].view(torch.float32)) for each in messages]
        Signs(groups, out.device).decode([(words, scales, None) for words, scales in pairs], out)
    return out
