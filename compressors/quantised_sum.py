"""A sum in few bits: quantise, all-to-all, add up in fp32, quantise anew, all-gather.

- Wang et al. 2023, "ZeRO++", arXiv 2306.10209 (qgZ): int4, first within a machine, then between machines.
- Xie et al. 2024, "LoCo: Low-Bit Communication Adaptor", arXiv 2407.04480: what quantising cuts off is added to the
  next gradient.
- torchft's fp8 all-reduce (`collectives.py`).
"""

from collections.abc import Iterator
from math import gcd
from operator import itemgetter

import torch
from torch import Tensor

from wirebench.compressors.bits.narrow import SCALE_BYTES, Form, added, message_bytes, quantised, restored
from wirebench.compressors.common.feedback import Feedback
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Keeps, Method
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import phase
from wirebench.gradient.requests import Gather, Route


class QuantisedSum(Method):
    """Each rank sums one share of the gradient, which all ranks send to it quantised.

    form      int4, int8, or fp8 (e4m3)
    chunk     neighbouring elements that share a scale, the largest magnitude among them
    group     ranks of a machine, neighbours in rank order: shares are added up within machines first, so that between
              machines a rank sends 1 / group as much. 0: all ranks at once. If `group` does not divide the world size
              of an elastic run, groups have the greatest common divisor of both as their size
    feedback  the quantisation error stays in a residual: the error of a gradient with its rank, the error of a sum with
              the rank that computed it, so that nothing is lost (LoCo keeps the former, and a moving average of it)

    A bucket is padded to a multiple of ranks times `chunk`, whatever its size (qgZ silently falls back to fp32).
    Memory: with feedback the residual, 1 d; while it works the gradient and what arrives of it in fp32, and few bits.
    """

    keeps: Keeps = "rounded"
    bounded_by = "form"

    def __init__(self, form: Form = "int4", chunk: int = 256, group: int = 0, feedback: bool = True) -> None:
        super().__init__()
        if chunk < 2 or chunk % 4:
            raise ValueError(f"chunk: needs a multiple of 4, got {chunk}")
        if group < 0:
            raise ValueError(f"group is a number of ranks, or 0 for all, got {group}")
        self.form, self.chunk, self.group, self.divides = form, chunk, group, group
        self.feedback = Feedback() if feedback else None
        if self.feedback:
            self.memory = self.feedback
        else:
            self.keeps, self.bounded_by = "nothing", ""
        self.unshared = ""
        if self.feedback:
            self.unshared = (
                "its error feedback would keep a residual of the whole gradient on each rank, the memory that sharding "
                "saves; build it with feedback=False"
            )
        elif group:
            self.unshared = "shares of groups lie on other ranks; build it with group=0"

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """A route for each stage, then one gather."""
        stages = self._stages(world.rank, world.size)
        with phase("update"):
            waiting = self.feedback.accumulate(bucket, world) if self.feedback else bucket.grad
            numel = -(-waiting.numel() // (world.size * self.chunk)) * world.size * self.chunk
            share, begin = waiting, 0
        for members in stages:
            with phase("encode"):
                pieces = self._coded(share, numel, begin, bucket).chunk(len(members))
                empty = pieces[0][:0]
                by_rank = dict(zip(members, pieces, strict=True))
                parts = [by_rank.get(rank, empty) for rank in range(world.size)]
            answers = yield Route(parts, values=sum(map(self._values, parts)))
            with phase("decode"):
                share = added([answers[rank] for rank in members], self.chunk, self.form)
                numel = share.numel()
                begin += members.index(world.rank) * numel
        with phase("encode"):
            message = self._coded(share, numel, begin, bucket)
        messages = yield Gather(message, values=self._values(message))
        with phase("decode"):
            in_order = [
                each for _, each in sorted(zip(self._places(world.size), messages, strict=True), key=itemgetter(0))
            ]
            return restored(in_order, self.chunk, self.form, bucket.grad, world.size)

    def share(self, whole: Tensor, world: ExchangeContext) -> Exchange:
        """One route: what `exchange` does before its gather, with each share padded to a multiple of `chunk`."""
        numel = whole.numel() // world.size
        with phase("encode"):
            padded = whole.new_zeros((world.size, -(-numel // self.chunk) * self.chunk), dtype=torch.float32)
            padded[:, :numel] = whole.view(world.size, numel)
            message = quantised(padded.view(-1), self.chunk, self.form, padded.numel())
        parts = list(message.chunk(world.size))
        answers = yield Route(parts, values=self._values(message))
        with phase("decode"):
            return added(answers, self.chunk, self.form)[:numel]

    def wire_bytes(self, numel: int, size: int) -> int:
        """The gradient, once for each stage less what later stages leave out, and a share of it."""
        whole = -(-numel // (size * self.chunk)) * size * self.chunk
        first = message_bytes(whole, self.chunk, self.form)
        later = first // group if 1 < (group := self._group(size)) < size else 0
        return first + later + first // size

    def _coded(self, values: Tensor, numel: int, begin: int, bucket: Bucket) -> Tensor:
        """The message of `values`, `numel` with zeros, which begin at place `begin` of the bucket; what it cuts off
        stays.
        """
        message = quantised(values, self.chunk, self.form, numel)
        if self.feedback and begin < bucket.grad.numel():
            residual = self.feedback.slice(bucket)[begin : begin + values.numel()]
            if residual.data_ptr() != values.data_ptr():
                residual.add_(values[: residual.numel()])
        return message

    def _values(self, message: Tensor) -> int:
        """The bytes of `message` that carry values, not scales."""
        each = message_bytes(self.chunk, self.chunk, self.form)
        return message.numel() // each * (each - SCALE_BYTES)

    def _stages(self, rank: int, size: int) -> list[list[int]]:
        """For each stage the ranks among which this rank's share is divided and summed."""
        group = self._group(size)
        local, across = range(rank - rank % group, rank - rank % group + group), range(rank % group, size, group)
        return [list(members) for members in (local, across) if len(members) > 1] or [[rank]]

    def _group(self, size: int) -> int:
        return gcd(self.group, size)  # with 0: all ranks

    def _places(self, size: int) -> Iterator[int]:
        """For each rank the number of its share in the bucket."""
        group = self._group(size)
        for rank in range(size):
            yield rank % group * (size // group) + rank // group
