"""Wire formats of plans (wirebench/collectives/wire.py): the numbers of `narrow` as codes of messages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import lcm
from typing import cast, get_args

import torch
from torch import Tensor

from wirebench.compressors.bits.narrow import CHUNK, Form, chunk_fault, chunk_of, message_bytes, quantised, restored
from wirebench.compressors.kernels import native
from wirebench.errors import UserError


@dataclass(frozen=True)
class Coded:
    """A format of `narrow` as a collective's code.

    chunk  elements that share a scale, where the format does not say how many
    rng    what rounding at random draws from; None: to the nearest, halves to even
    """

    form: Form
    chunk: int = CHUNK
    rng: torch.Generator | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The format's name."""
        return self.form

    @cached_property
    def unit(self) -> int:
        """Whole chunks, and whole bytes of numbers."""
        return lcm(4, self._chunk)

    def prepare(self, device: torch.device) -> None:
        """Build the loops for a CPU now, so that no step waits for a compiler."""
        if device.type == "cpu":
            native.library()

    def num_bytes(self, numel: int) -> int:
        """Bytes of a message of `numel` elements: its numbers and its scales."""
        return message_bytes(numel, self._chunk, self.form)

    def encode(self, values: Tensor, numel: int, parts: int = 1) -> Tensor:
        """The message, (bytes,); see `quantised`."""
        rng = None if self.form == "fp32" else self.rng
        return quantised(values, self._chunk, self.form, numel, parts, keep=False, generator=rng)

    def decode(self, messages: Sequence[Tensor], out: Tensor) -> Tensor:
        """Write what arrives to `out`; returns it."""
        return restored(messages, self._chunk, self.form, out)

    @property
    def _chunk(self) -> int:
        return chunk_of(self.form, self.chunk)


def code_of(form: str, where: str, chunk: int = CHUNK) -> Coded | None:
    """The code of this name, None for ""; UserError, which begins with `where`, for one that there is not.

    chunk  elements that share a scale; UserError for a number that the format cannot have
    """
    if not form:
        return None
    if form not in get_args(Form):
        raise UserError(f"{where}: {form!r} is no wire format; there are {', '.join(get_args(Form))}")
    if fault := chunk_fault(chunk, form):
        raise UserError(f"{where}: chunk {fault}")
    return Coded(cast(Form, form), chunk)
