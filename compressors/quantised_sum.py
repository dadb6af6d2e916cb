"""A sum in few bits: quantise, all-to-all, add up in fp32, quantise anew, all-gather.

- Wang et al. 2023, "ZeRO++", arXiv 2306.10209 (qgZ): int4, first within a machine, then between machines.
- Xie et al. 2024, "LoCo: Low-Bit Communication Adaptor", arXiv 2407.04480: what quantising cuts off is added to the
  next gradient.
- torchft's fp8 all-reduce (`collectives.py`).
- Ashkboos et al. 2024, "QuaRot", arXiv 2404.00456: a random Hadamard rotation before quantising, against outliers.
"""

from collections.abc import Iterator
from functools import cache
from math import gcd, lcm
from operator import itemgetter
from typing import Literal

import torch
from torch import Tensor

from wirebench.compressors.bits.narrow import (
    CHUNK,
    Form,
    added,
    chunk_fault,
    chunk_of,
    message_bytes,
    quantised,
    restored,
    value_bytes,
)
from wirebench.compressors.common.feedback import Rounding
from wirebench.compressors.kernels import native
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather, Route
from wirebench.utils.rng import generator

MOST_ROTATED = 1024


class QuantisedSum(Rounding):
    """Each rank sums one share of the gradient, which all ranks send to it quantised.

    form      of the numbers on the wire: fp32, bf16, fp16; with a scale for each chunk int4, int8, fp8 (e4m3) or
              fp8_e5m2; for each block of 32 elements mxfp8 (e4m3), mxfp8_e5m2, mxfp6 (e2m3), mxfp6_e3m2 or mxfp4; for
              each block of 16 nvfp4
    chunk     neighbouring elements that share a scale, where the form does not say how many
    group     ranks of a machine, neighbours in rank order: shares are added up within machines first, so that between
              machines a rank sends 1 / group as much. 0: all ranks at once. If `group` does not divide the world size
              of an elastic run, groups have the greatest common divisor of both as their size
    within    the form within machines, where `group` is given; empty: the same form
    feedback  the quantisation error stays in a residual: the error of a gradient with its rank, the error of a sum with
              the rank that computed it, so that nothing is lost (LoCo keeps the former, and a moving average of it)
    rounding  nearest; stochastic: up or down at random, right on average
    rotate    elements that a random Hadamard rotation mixes before they are quantised, a power of two; 0: none

    A bucket is padded to a multiple of ranks times `chunk`, whatever its size (qgZ silently falls back to fp32).
    Memory: with feedback the residual, 1 d; while it works the gradient and what arrives of it in fp32, and few bits.
    """

    bounded_by = "form"

    def __init__(
        self,
        form: Form = "int4",
        chunk: int = CHUNK,
        group: int = 0,
        feedback: bool = True,
        within: Form | Literal[""] = "",
        rounding: Literal["nearest", "stochastic"] = "nearest",
        rotate: int = 0,
    ) -> None:
        super().__init__(feedback, rounding)
        if fault := chunk_fault(chunk, form, within or form):
            raise ValueError(f"chunk {fault}")
        if group < 0:
            raise ValueError(f"group is a number of ranks, or 0 for all, got {group}")
        if within and group < 2:
            raise ValueError(f"within={within} is the form within machines, and needs their ranks: group=2 or more")
        if rotate and (rotate < 2 or rotate > MOST_ROTATED or rotate & (rotate - 1)):
            raise ValueError(f"rotate is a power of two up to {MOST_ROTATED}, or 0 for none, got {rotate}")
        if rounding == "stochastic" and form == (within or form) == "fp32":
            raise ValueError("rounding=stochastic rounds nothing with form=fp32")
        self.form, self.chunk, self.group, self.divides = form, chunk, group, group
        self.within: Form = within or form
        self.rotate = rotate
        self.unshared = ""
        if self.feedback:
            self.unshared = (
                "its error feedback would keep a residual of the whole gradient on each rank, the memory that sharding "
                "saves; build it with feedback=False"
            )
        elif group:
            self.unshared = "shares of groups lie on other ranks; build it with group=0"
        elif rotate:
            self.unshared = "a rotated share means nothing alone; build it with rotate=0"

    def prepare(self, device: torch.device) -> None:
        """See Method: the loops for a CPU are built now, so that no step waits for a compiler."""
        if device.type == "cpu":
            native.library()

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """A route for each stage, then one gather."""
        stages = self._stages(world.rank, world.size)
        rng = self._draws(world, bucket.start, bucket.grad.device)
        waiting = self.accumulated(bucket, world)
        with phase("update"):
            numel = self._padded(waiting.numel(), world.size)
            # What is cut off stays in `held`, which without a rotation is the residual itself.
            held = self._turned(waiting, world.seed, torch.empty_like(waiting)) if self.rotate else waiting
            share, begin = held, 0
        for members, form in stages:
            with phase("encode"):
                message = self._coded(share, numel, begin, form, held, len(members), rng)
                pieces = message.chunk(len(members))
                empty = pieces[0][:0]
                by_rank = dict(zip(members, pieces, strict=True))
                parts = [by_rank.get(rank, empty) for rank in range(world.size)]
            lengths = [len(parts[world.rank]) if rank in by_rank else 0 for rank in range(world.size)]
            answers = yield Route(parts, value_bytes(numel, form), lengths)
            with phase("decode"):
                share = added([answers[rank] for rank in members], chunk_of(form, self.chunk), form)
                numel = share.numel()
                begin += members.index(world.rank) * numel
        with phase("encode"):
            message = self._coded(share, numel, begin, self.form, held, 1, rng)
        messages = yield Gather(message, values=value_bytes(numel, self.form))
        with phase("decode"):
            in_order = [
                each for _, each in sorted(zip(self._places(world.size), messages, strict=True), key=itemgetter(0))
            ]
            total = torch.empty_like(bucket.grad) if self.rotate else bucket.grad
            restored(in_order, chunk_of(self.form, self.chunk), self.form, total, world.size)
            if self.rotate:
                if self.feedback:
                    self._turned(held, world.seed, waiting, back=True)
                self._turned(total, world.seed, bucket.grad, back=True)
            return bucket.grad

    def scatter(self, whole: Tensor, world: ExchangeContext) -> Exchange:
        """One route: what `exchange` does before its gather, with each share padded to a multiple of `chunk`."""
        numel, chunk = whole.numel() // world.size, chunk_of(self.form, self.chunk)
        with phase("encode"):
            padded = whole.new_zeros((world.size, -(-numel // max(chunk, 4)) * max(chunk, 4)), dtype=torch.float32)
            padded[:, :numel] = whole.view(world.size, numel)
            rng = self._draws(world, 0, whole.device)
            message = quantised(padded.view(-1), chunk, self.form, padded.numel(), world.size, False, rng)
        parts = message.chunk(world.size)
        lengths = [len(parts[world.rank])] * world.size
        answers = yield Route(parts, value_bytes(padded.numel(), self.form), lengths)
        with phase("decode"):
            return added(answers, chunk, self.form)[:numel]

    def wire_bytes(self, numel: int, size: int) -> int:
        """The gradient, once for each stage less what later stages leave out, and a share of it."""
        left, sent = self._padded(numel, size), 0
        for members, form in self._stages(0, size):
            left //= len(members)
            sent += len(members) * message_bytes(left, chunk_of(form, self.chunk), form)
        return sent + message_bytes(left, chunk_of(self.form, self.chunk), self.form)

    def _draws(self, world: ExchangeContext, start: int, device: torch.device) -> torch.Generator | None:
        """What rounding at random draws from, in an exchange of the bucket that begins at `start`."""
        if self.rounding == "nearest":
            return None
        return generator("quantised_sum", world.seed, world.rank, world.step, start, device=device)

    def _padded(self, numel: int, size: int) -> int:
        unit = size * lcm(4, *(chunk_of(form, self.chunk) for form in (self.form, self.within)))
        return -(-numel // unit) * unit

    def _coded(
        self, values: Tensor, numel: int, begin: int, form: Form, held: Tensor, parts: int, rng: torch.Generator | None
    ) -> Tensor:
        """The message of `values`, `numel` with zeros, which begin at place `begin` of `held`, where what it cuts off
        stays.
        """
        rng = None if form == "fp32" else rng
        residual = held[begin : begin + values.numel()]
        rest = residual if self.feedback and residual.numel() and residual.data_ptr() != values.data_ptr() else None
        keep = self.feedback is not None
        return quantised(values, chunk_of(form, self.chunk), form, numel, parts, keep, rng, rest)

    def _turned(self, values: Tensor, seed: int, out: Tensor, back: bool = False) -> Tensor:
        """Write `values`, rotated or rotated back, to `out`, and return it; what is behind the last whole block does
        not change.
        """
        whole = values.numel() // self.rotate * self.rotate
        rows = values[:whole].view(-1, self.rotate)
        matrix = _rotation(self.rotate, seed, values.device)
        torch.mm(rows, matrix.T if back else matrix, out=out[:whole].view(-1, self.rotate))
        if whole < values.numel():
            out[whole:] = values[whole:]
        return out

    def _stages(self, rank: int, size: int) -> list[tuple[list[int], Form]]:
        """For each stage the ranks among which this rank's share is divided and summed, and in which form."""
        group = self._group(size)
        local, across = range(rank - rank % group, rank - rank % group + group), range(rank % group, size, group)
        stages = [(list(local), self.within), (list(across), self.form)]
        return [stage for stage in stages if len(stage[0]) > 1] or [([rank], self.form)]

    def _group(self, size: int) -> int:
        return gcd(self.group, size)  # with 0: all ranks

    def _places(self, size: int) -> Iterator[int]:
        """For each rank the number of its share in the bucket."""
        group = self._group(size)
        for rank in range(size):
            yield rank % group * (size // group) + rank // group


@cache
def _rotation(length: int, seed: int, device: torch.device) -> Tensor:
    """A Hadamard matrix whose rows have random signs, orthonormal: fp32 (length, length)."""
    matrix = torch.ones(1, 1)
    while len(matrix) < length:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    signs = torch.randint(2, (length, 1), generator=generator("quantised_sum rotation", seed)) * 2 - 1
    return (matrix * signs / length**0.5).to(device)
