"""Numbers of 4 or 8 bits with a scale for every chunk of neighbours: whole ones, or floating-point ones."""

from typing import Literal

import torch
from torch import Tensor

Form = Literal["int4", "int8", "fp8"]
SCALE_BYTES = 4
_LARGEST = {"int4": 7.0, "int8": 127.0, "fp8": 448.0}
"""The number that a chunk's largest magnitude is scaled to; 448 is float8_e4m3fn's largest."""


def message_bytes(numel: int, chunk: int, form: Form) -> int:
    """Bytes of `numel` elements, a multiple of `chunk`, which is even: numbers, and scales."""
    return numel // (2 if form == "int4" else 1) + numel // chunk * SCALE_BYTES


def quantised(values: Tensor, chunk: int, form: Form) -> tuple[Tensor, Tensor]:
    """The message of fp32 `values`, (n,) with whole chunks, as uint8, by chunk its scale and its numbers; and what
    arrives of them, fp32 (n,), rounded to nearest.
    """
    rows = values.view(-1, chunk)
    scales = rows.abs().amax(1, keepdim=True) / _LARGEST[form]
    # A chunk of zeros has scale 0, and stays one. So does a chunk below 8e-38 (int4) to 5e-36 (fp8): its scale would be
    # no normal number, and so inexact that the largest number overflows.
    scales.masked_fill_(scales < torch.finfo(torch.float32).tiny, 0.0)
    scaled = rows / torch.where(scales == 0, torch.ones_like(scales), scales)
    if form == "fp8":
        numbers = scaled.to(torch.float8_e4m3fn)
        arriving = numbers.to(torch.float32)
        coded = numbers.view(torch.uint8)
    else:
        arriving = scaled.round_()
        # What is not finite is 0 here; its scale is not finite, so that all of its chunk is NaN when it arrives.
        whole = arriving.nan_to_num(0.0, 0.0, 0.0).to(torch.int8)
        coded = whole.view(torch.uint8)
        if form == "int4":
            coded = (coded[:, 0::2] & 15) | (coded[:, 1::2] << 4)
    message = torch.cat((scales.view(torch.uint8), coded), 1)
    return message.flatten(), (arriving * scales).view(-1)


def restored(message: Tensor, chunk: int, form: Form) -> Tensor:
    """The numbers that `quantised` says arrive, fp32 (n,)."""
    rows = message.view(-1, message_bytes(chunk, chunk, form))
    scales, coded = rows[:, :SCALE_BYTES].contiguous().view(torch.float32), rows[:, SCALE_BYTES:].contiguous()
    if form == "fp8":
        numbers = coded.view(torch.float8_e4m3fn).to(torch.float32)
    elif form == "int8":
        numbers = coded.view(torch.int8).to(torch.float32)
    else:
        # The lower half is moved up first, so that its sign is the byte's when it is moved down again.
        halves = torch.stack(((coded << 4).view(torch.int8) >> 4, coded.view(torch.int8) >> 4), 2)
        numbers = halves.view(len(rows), chunk).to(torch.float32)
    return (numbers * scales).view(-1)
