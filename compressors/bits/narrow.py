"""Numbers of 4 or 8 bits with a scale for every chunk of neighbours: whole ones, or floating-point ones."""

from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from wirebench.compressors import kernels

Form = Literal["int4", "int8", "fp8"]
SCALE_BYTES = 4
WIDEST = 4096
"""The longest chunk that kernels take: they hold one at once."""
LARGEST = {"int4": 7.0, "int8": 127.0, "fp8": 448.0}
"""The number that a chunk's largest magnitude is scaled to; 448 is float8_e4m3fn's largest."""


def message_bytes(numel: int, chunk: int, form: Form) -> int:
    """Bytes of `numel` elements, a multiple of `chunk`, which is even: numbers, and scales."""
    return numel // (2 if form == "int4" else 1) + numel // chunk * SCALE_BYTES


def quantised(values: Tensor, chunk: int, form: Form, numel: int) -> Tensor:
    """The message of fp32 `values`, (n,), as uint8: of each chunk its scale, then its numbers, rounded to nearest.

    What that cuts off stays in `values`, but for what is not finite. `numel`, at least n, is a multiple of `chunk`: the
    message is of as many elements, of zeros at the end.
    """
    if kernels.usable(values) and chunk <= WIDEST:
        from wirebench.compressors.kernels.narrow import quantise

        message = torch.empty(message_bytes(numel, chunk, form), dtype=torch.uint8, device=values.device)
        quantise(values, chunk, form, message)
        return message
    missing = numel - values.numel()
    rows = (pad(values, (0, missing)) if missing else values).view(-1, chunk)
    scales = rows.abs().amax(1, keepdim=True) / LARGEST[form]
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
    values.sub_((arriving * scales).view(-1)[: values.numel()]).nan_to_num_(0.0, 0.0, 0.0)
    return torch.cat((scales.view(torch.uint8), coded), 1).flatten()


def restored(messages: Sequence[Tensor], chunk: int, form: Form, out: Tensor, size: int = 1) -> Tensor:
    """Write the numbers that arrive of `messages`, one after the other, over `size` to `out`, (n,); returns it."""
    if kernels.usable(out) and chunk <= WIDEST:
        from wirebench.compressors.kernels.narrow import restore

        restore(kernels.stacked(messages), chunk, form, out, 1, size)
        return out
    place = 0
    for each in messages:
        numbers = _numbers(each, chunk, form)
        part = out[place : place + numbers.numel()]
        part.copy_(numbers[: part.numel()])
        place += numbers.numel()
    return out.div_(size) if size > 1 else out


def added(messages: Sequence[Tensor], chunk: int, form: Form) -> Tensor:
    """The sum of the numbers that arrive of `messages`, in their order, fp32 (n,)."""
    if kernels.usable(messages[0]) and chunk <= WIDEST:
        from wirebench.compressors.kernels.narrow import restore

        numel = messages[0].numel() // message_bytes(chunk, chunk, form) * chunk
        total = torch.empty(numel, device=messages[0].device)
        restore(kernels.stacked(messages), chunk, form, total, len(messages), 1)
        return total
    return reduce(Tensor.add_, [_numbers(each, chunk, form) for each in messages])


def _numbers(message: Tensor, chunk: int, form: Form) -> Tensor:
    rows = message.view(-1, message_bytes(chunk, chunk, form))
    scales = rows[:, :SCALE_BYTES].flatten().clone().view(torch.float32)[:, None]
    coded = rows[:, SCALE_BYTES:].contiguous()
    if form == "fp8":
        numbers = coded.view(torch.float8_e4m3fn).to(torch.float32)
    elif form == "int8":
        numbers = coded.view(torch.int8).to(torch.float32)
    else:
        # The lower half is moved up first, so that its sign is the byte's when it is moved down again.
        halves = torch.stack(((coded << 4).view(torch.int8) >> 4, coded.view(torch.int8) >> 4), 2)
        numbers = halves.view(len(rows), chunk).to(torch.float32)
    return (numbers * scales).view(-1)
