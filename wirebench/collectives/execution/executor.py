"""Answer requests: run a plan on a communicator, or hand the request to the engine's own call.

Everything here is a generator that yields a handle per round and is sent what the handle's `wait` returned. So one
code serves a process that waits in a thread, virtual workers in lockstep, and a simulator that only prices.

A plan has two parts, `reduce` and `copy`: of a ring a reduce-scatter and an all-gather, of a tree a reduce to its root
and a broadcast. Below, reduce-scatter and all-gather stand for these parts, whatever the plan.
"""

import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import Tensor

from wirebench.collectives.execution.coded import CodedProgram, coded_program_of, run_coded
from wirebench.collectives.execution.merging import Counted, accounted, fold_all, run_merge
from wirebench.collectives.execution.program import RankProgram, Scratch, program_of, run_program
from wirebench.collectives.execution.routing import run_route
from wirebench.collectives.execution.segments import in_flight, segments
from wirebench.collectives.plan import Collective, Move, Plan, gather_moves, root
from wirebench.collectives.wire import items_of, wire_of
from wirebench.comm.base import LENGTH_BYTES, Handle, as_bytes
from wirebench.comm.metered import Count, Metered
from wirebench.errors import UserError
from wirebench.gradient.requests import Answer, Gather, Merge, Reduce, Request, Route, Sum, handed_over, payload
from wirebench.topology.tree import Topology

Rounds = Generator[Handle, Any, Any]
Part = Literal["whole", "reduce", "copy"]
Course = RankProgram | CodedProgram
NATIVE = "native"


@dataclass(frozen=True)
class RequestLog:
    """One request as it was served.

    kind           Sum, Gather, Merge or Route
    plan           name of the plan, or what of the engine's own calls stood in for it
    rounds         communication rounds; rounds of a sum's segments (segments.py) overlap, and each counts
    payload_bytes  what the compressor handed over; value_bytes: without indices, scales and bits
    wire_bytes     what this rank sent
    seconds        from the request to its answer; with a split schedule also what lies between the two parts of a sum
    begin          time of the request, in seconds of perf_counter; 0 if unknown
    """

    kind: str
    plan: str
    rounds: int
    payload_bytes: int
    value_bytes: int
    wire_bytes: int
    seconds: float
    begin: float = 0.0


class _ReduceScatterDone:
    """Stands between the reduce-scatter and the all-gather of a sum: where a driver may leave an exchange.

    It is a handle whose `wait` returns at once, so a driver needs no special case for it.
    """

    wire_bytes = 0

    def wait(self) -> None:
        """Return at once."""


REDUCE_SCATTER_DONE = _ReduceScatterDone()


class RequestExecutor:
    """Serves the requests of one rank; `log` collects what was served until the caller empties it.

    halves  a sum yields REDUCE_SCATTER_DONE before its all-gather; the driver may advance other requests then
    """

    def __init__(self, communicator: Metered, collective: Collective, topology: Topology) -> None:
        self.communicator, self.collective, self.topology = communicator, collective, topology
        self.log: list[RequestLog] = []
        self.halves = False
        self._wire = wire_of(collective)
        # What others sent while the sum that ends now waited: the communicator's count has that too.
        self._meanwhile = Count()
        # Plans depend on sizes alone, and a run has few: plan once per size.
        self._plan = lru_cache(maxsize=4096)(lambda items: collective.plan(topology, items))
        self._courses = lru_cache(maxsize=4096)(self._cut)
        self._moves = lru_cache(maxsize=1)(self._gather_moves)
        self._counted: Counted | None = None
        self._scratch = Scratch()

    def prepare(self, device: torch.device) -> None:
        """Make ready what the first request should not wait for; its numbers are on `device`."""
        if self._wire is not None:
            self._wire.between.prepare(device)

    def take_log(self) -> list[RequestLog]:
        """The requests served since the last call."""
        log, self.log = self.log, []
        return log

    def serve(self, request: Request) -> Generator[Handle, Any, Answer]:
        """Yield a handle per round; return the answer of the request."""
        begin, before, tensors = time.perf_counter(), self.communicator.count, handed_over(request)
        handed = values = sum(tensor.nbytes for tensor in tensors)
        if request.values is not None:
            values = request.values * tensors[0].element_size()
        name, answer = yield from self._by_kind(request)
        count = self.communicator.count.since(before).since(self._meanwhile)
        self._meanwhile = Count()
        seconds = time.perf_counter() - begin
        kind = type(request).__name__
        self.log.append(RequestLog(kind, name, count.calls, handed, values, count.wire_bytes, seconds, begin))
        return answer

    def _by_kind(self, request: Request) -> Generator[Handle, Any, tuple[str, Answer]]:
        if self.communicator.size == 1:
            return "none", handed_over(request) if isinstance(request, Gather | Route) else payload(request)
        if isinstance(request, Sum):
            return (yield from self._sum(request.tensor))
        if isinstance(request, Reduce):
            return (yield from self._reduce(request.tensor))
        if isinstance(request, Gather):
            return (yield from self._gather(request.tensor))
        if isinstance(request, Route):
            return "pairs", (yield from run_route(request.parts, self.communicator, request.lengths))
        return (yield from self._merge(request))

    def _reduce(self, tensor: Tensor) -> Generator[Handle, Any, tuple[str, Tensor | None]]:
        """The sum on one rank, None elsewhere; by the plan's reduce half alone if one rank has the whole sum then."""
        plan = self._plan(tensor.numel())
        holder = None if plan is None else root(plan)
        name, total = yield from self._sum(tensor, half=holder is not None)
        holder = self.topology.ranks[0] if holder is None else holder
        return name, total if self.communicator.rank == holder else None

    def _sum(self, tensor: Tensor, half: bool = False) -> Generator[Handle, Any, tuple[str, Tensor]]:
        tensor = tensor.contiguous()
        if self._wire is not None and tensor.dtype != torch.float32:
            if not tensor.is_floating_point():
                kind = str(tensor.dtype).removeprefix("torch.")
                raise UserError(f"collective.wire: codes floating-point numbers, and this is a sum of {kind}")
            name, total = yield from self._sum(tensor.float(), half)
            return name, total.to(tensor.dtype)
        # An engine's own call cannot be left halfway.
        has_halves = self.halves and self._courses(tensor.numel(), tensor.element_size(), "reduce")[0]
        if half or not has_halves:
            return (yield from self._run(tensor, "reduce" if half else "whole")), tensor
        name = yield from self._run(tensor, "reduce")
        before = self.communicator.count
        yield REDUCE_SCATTER_DONE
        meanwhile = self.communicator.count.since(before)
        yield from self._run(tensor, "copy")
        # Not before the all-gather: while it is under way, other sums may end, and would take this for theirs.
        self._meanwhile = meanwhile
        return name, tensor

    def _run(self, tensor: Tensor, part: Part) -> Generator[Handle, Any, str]:
        """One part of a sum, or the engine's own call for all of it; returns the plan's name."""
        courses, apart = self._courses(tensor.numel(), tensor.element_size(), part)
        if not courses:
            yield self.communicator.all_reduce(tensor)
            return NATIVE
        flat = tensor.view(-1)
        each = 1 if self._wire is None else self._wire.unit
        pieces = ((course, flat[start * each : stop * each]) for start, stop, course in courses)
        parts = (self._segment(course, piece, len(courses) == 1) for course, piece in pieces)
        yield from in_flight(parts, apart)
        return courses[0][2].name

    def _segment(self, course: Course, flat: Tensor, alone: bool) -> Rounds:
        if isinstance(course, CodedProgram):
            yield from run_coded(course, flat, self.communicator, alone)
            return
        # Taken when the segment starts: a few buffers serve any number of segments, as only a few are under way.
        scratch = self._scratch.take(course.scratch_items, flat)
        yield from run_program(course, flat, scratch, self.communicator, alone)
        self._scratch.give_back(scratch)

    def _cut(self, items: int, item_bytes: int, part: Part) -> tuple[list[tuple[int, int, Course]], int]:
        """This rank's part of every segment of a sum: (start, stop, course), none where the engine has its own.

        And how many rounds apart they start (segments.py). With a wire format `start` and `stop` count the plan's
        items, and segments are as long as their messages between machines make them.
        """
        items, _, item_bytes = items_of(self.collective, items, item_bytes)
        # The parts of a sum that run apart are both cut by the reduce-scatter. Cut by its own rounds the all-gather
        # might have other segments, and so gather shares that their owners never got.
        plan_of = self._plan if part == "whole" else self._reducing
        cut = segments(plan_of, self.topology, items, item_bytes)
        plans = [(s.start, s.stop, self._half(s.plan, s.stop - s.start, part)) for s in cut.parts if s.plan is not None]
        return [(start, stop, self._course(plan)) for start, stop, plan in plans], cut.apart

    def _course(self, plan: Plan) -> Course:
        of_rank = program_of if self._wire is None else coded_program_of
        return of_rank(plan, self.communicator.rank)

    def _half(self, plan: Plan, items: int, part: Part) -> Plan:
        whole = self._plan(items)
        return plan if part != "copy" or whole is None else replace(whole, reduce=())

    def _reducing(self, items: int) -> Plan | None:
        plan = self._plan(items)
        return None if plan is None else replace(plan, copy=())

    def _gather_moves(self, size: int) -> tuple[tuple[Move, ...], ...]:
        plan = self._plan(size)
        assert plan is not None, "the engine's own collective has no moves"
        return gather_moves(plan, size, self.topology.ranks)

    def _gather(self, tensor: Tensor) -> Generator[Handle, Any, tuple[str, list[Tensor]]]:
        size = self.communicator.size
        plan, tensor = self._plan(size), tensor.contiguous()
        if plan is None:
            return "native", (yield self.communicator.all_gather(tensor))
        return plan.name, (yield from run_gather(self._moves(size), tensor, self.communicator))

    def _merge(self, request: Merge) -> Generator[Handle, Any, tuple[str, Tensor]]:
        plan = self._plan(1)
        if plan is not None:
            if self._counted is None:
                self._counted = accounted(plan, self.communicator.size)
            merged = run_merge(plan, self._counted, request, self.communicator, self.topology.position)
            return plan.name, (yield from merged)
        # Engines have no merge of their own: gather, then every rank folds the messages in rank order.
        messages = yield self.communicator.all_gather(request.message.contiguous())
        return "native gather, fold in rank order", fold_all(messages, request, self.communicator.rank)


def run_gather(
    rounds: tuple[tuple[Move, ...], ...], tensor: Tensor, communicator: Metered
) -> Generator[Handle, Any, list[Tensor]]:
    """All-gather along the moves of a plan. Lengths travel in front of the contributions, in the same message."""
    rank, held = communicator.rank, {communicator.rank: tensor}
    for moves in rounds:
        sends = [(m.dst, _pack([held[origin] for origin in m.origins])) for m in moves if m.src == rank]
        mine = [m for m in moves if m.dst == rank]
        receives = [(m.src, None) for m in mine]
        received = yield communicator.exchange(sends, receives, torch.uint8, True, tensor.device)
        for move, message in zip(mine, received, strict=True):
            held.update(zip(move.origins, _unpack(message, len(move.origins), tensor.dtype), strict=True))
    return [held[origin] for origin in range(communicator.size)]


def _pack(parts: list[Tensor]) -> Tensor:
    lengths = torch.tensor([part.nbytes for part in parts], dtype=torch.int64, device=parts[0].device)
    return torch.cat([as_bytes(lengths), *map(as_bytes, parts)])


def _unpack(message: Tensor, count: int, dtype: torch.dtype) -> list[Tensor]:
    head = count * LENGTH_BYTES
    lengths = message[:head].view(torch.int64).tolist()
    return [part.view(dtype) for part in message[head:].split(lengths)]
