"""Measure an all-reduce: the same tensor on every rank of a job, with the exact answer known.

nccl-tests' habits: warm up, check, repeat; a repeat is a loop of calls without a barrier between them, as long as
the clock needs, and counts for its slowest rank. In a wire format no sum is exact: there the answer is the one that the
same plans give on virtual ranks.
"""

import functools
import hashlib
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.bench.virtual_sums import coded_sum
from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.execution.segments import Segments, segments
from wirebench.collectives.plan import Collective, Plan
from wirebench.collectives.wire import Items, items_of, wire_of
from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather
from wirebench.costmodel.coding import Coding
from wirebench.costmodel.plan_cost import native_seconds, pipelined_seconds, uplink_bytes
from wirebench.exchange.advance import run
from wirebench.gradient.flat import FLOAT_BYTES
from wirebench.gradient.requests import Sum
from wirebench.simulation.compress_rates import Rates
from wirebench.telemetry.nic import InterfaceCounter
from wirebench.topology.tree import Topology

PERIOD = 1009
MIN_LOOP_SECONDS = 0.02
MAX_LOOP = 200
MAX_DOUBLINGS = 100
"""Of numbers below 1: they stay finite in fp32, and in all wire formats but fp16."""
MAX_DOUBLINGS_FP16 = 15
"""Its largest number is 65,504."""

StandIn = Callable[[int], Plan]
"""The plan by which the engine's own collective is counted, for a number of items."""


class Outcome(NamedTuple):
    """What a check found: see AllReduceResult; `seconds` of the call."""

    max_error: float
    identical: bool
    reproduced: bool | None
    seconds: float


class Repeats(NamedTuple):
    """seconds: of one call, by repeat, the slowest rank's; interface: bytes (sent, received) a call, by machine."""

    seconds: list[float]
    interface: list[tuple[float, float]] | None


class AllReduceBenchmark:
    """One collective on one engine. Every rank makes the same calls."""

    def __init__(self, engine: Engine, collective: Collective, topology: Topology, nic: InterfaceCounter) -> None:
        self.engine, self.collective, self.topology, self.nic = engine, collective, topology, nic
        self.communicator = engine.communicators[0]
        self.server = RequestExecutor(self.communicator, collective, topology)
        self.server.prepare(engine.device)
        self.wire = wire_of(collective)
        self._seconds: list[float] = []
        self._bytes: list[tuple[int, int]] = []
        self._calls = 0

    def segments(self, items: int) -> Segments:
        """How a sum is cut, with plans; bounds count the plans' items, of which one holds several in a wire format."""
        plan_of, counted = functools.partial(self.collective.plan, self.topology), self.items(items)
        return segments(plan_of, self.topology, counted.number, counted.sent_bytes)

    def items(self, items: int) -> Items:
        """An fp32 sum as plans count it."""
        return items_of(self.collective, items)

    def check(self, tensor: Tensor) -> Outcome:
        """Fill `tensor` with this rank's part, sum it once, compare with the exact sum."""
        size, items = self.topology.size, tensor.numel()
        _fill(tensor, table(self.communicator.rank))
        self.barrier()
        begin = time.perf_counter()
        self._sum(tensor)
        seconds = time.perf_counter() - begin
        tables = [table(rank) for rank in range(size)]
        exact = torch.stack(tables).sum(0)
        scale = torch.stack(tables).abs().sum(0).max().item()
        error = _largest_error(tensor, exact) / scale if items else 0.0
        digest = hashlib.sha256(tensor.cpu().numpy().tobytes()).hexdigest()
        told = gather(self.communicator, [error, digest, seconds, self._reproduced(tensor)])
        errors, digests, times, reproduced = zip(*told, strict=True)
        return Outcome(max(errors), len(set(digests)) == 1, all(reproduced) if self.wire else None, max(times))

    def _reproduced(self, tensor: Tensor) -> bool:
        """Whether this rank's share of the segments has the numbers that their plans give on virtual ranks.

        A rank takes every size-th segment. Together the ranks, which end with the same bits, check the whole sum in the
        time of one. A segment takes the memory of two tensors for every rank. True without a wire format.
        """
        if self.wire is None:
            return True
        size, unit = self.topology.size, self.wire.unit
        for part in self.segments(tensor.numel()).parts[self.communicator.rank :: size]:
            assert part.plan is not None, "a plan with a wire format"
            mine = tensor[part.start * unit : part.stop * unit].cpu()
            grads = torch.zeros(size, (part.stop - part.start) * unit)
            for rank, grad in enumerate(grads):
                _fill(grad[: mine.numel()], table(rank).roll(-part.start * unit))
            if not torch.equal(coded_sum(part.plan, grads)[: mine.numel()], mine):
                return False
        return True

    def loop_length(self, seconds: float) -> int:
        """Calls a repeat, from the time of one; the same on every rank when `seconds` is."""
        return min(MAX_LOOP, max(1, math.ceil(MIN_LOOP_SECONDS / max(seconds, 1e-9))))

    def repeat(self, tensor: Tensor, calls: int) -> None:
        """Time one loop of calls on a tensor of zeros, whose sums stay finite however often they are repeated.

        In a wire format it has numbers: coding of zeros may take another time. Copies take its place before sums of
        sums get too large. It is left with zeros.
        """
        finite = self._finite_calls() if self.wire else calls
        tensors = [tensor, *(torch.empty_like(tensor) for _ in range((calls - 1) // finite))]
        if self.wire:
            for each in tensors:
                _fill(each, table(self.communicator.rank))
        self.barrier()
        before = self.nic.read()
        begin = time.perf_counter()
        for call in range(calls):
            self._sum(tensors[call // finite])
        self._seconds.append((time.perf_counter() - begin) / calls)
        self._calls += calls
        self.barrier()
        after = self.nic.read()
        if before is not None and after is not None:
            self._bytes.append((after[0] - before[0], after[1] - before[1]))
        if self.wire:
            tensor.zero_()

    def _finite_calls(self) -> int:
        """How often a tensor of numbers can be replaced by its sum in the wire format, at least once."""
        assert self.wire is not None, "a wire format"
        most = MAX_DOUBLINGS_FP16 if self.wire.between.name == "fp16" else MAX_DOUBLINGS
        return max(1, int(most / math.log2(self.topology.size)))

    def take(self) -> Repeats:
        """The repeats since the last call, put together from all ranks."""
        sent, received = (sum(counts) / max(1, self._calls) for counts in zip(*self._bytes or [(0, 0)], strict=True))
        answers = gather(self.communicator, [self._seconds, [sent, received] if self._bytes else None])
        self._seconds, self._bytes, self._calls = [], [], 0
        seconds = [max(of_ranks) for of_ranks in zip(*(f[0] for f in answers), strict=True)]
        firsts = [answers[ranks[0]][1] for ranks in self.topology.machines]
        if len(firsts) == 1 or any(first is None for first in firsts):
            return Repeats(seconds, None)
        return Repeats(seconds, [(first[0], first[1]) for first in firsts])

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.communicator.all_reduce(torch.zeros(1)).wait()

    def _sum(self, tensor: Tensor) -> None:
        run([self.server.serve(Sum(tensor))])
        if tensor.device.type == "cuda":
            torch.cuda.synchronize(tensor.device)
        self.server.take_log()


def predicted_seconds(trial: AllReduceBenchmark, items: int) -> float | None:
    """The cost model's price, with coding; None where the topology, or our rates of coding, do not have the speeds."""
    topology, cut = trial.topology, trial.segments(items)
    if not cut.plans:
        return native_seconds(topology, items * FLOAT_BYTES) if topology.native else None
    wire, each = trial.wire, trial.items(items).num_bytes
    known = all(branch.links for branch in topology.branches.values())
    coding = _coding(wire.between.name, trial.engine.device.type == "cuda") if known and wire else None
    if not known or (wire and coding is None):
        return None
    return pipelined_seconds(cut.plans, topology, each, cut.apart, coding)


@functools.cache
def _coding(form: str, on_gpu: bool) -> Coding | None:
    """Our rates of coding in this format; None where it was not measured."""
    rates = Rates.shipped(on_gpu=on_gpu)
    return rates.coding(rates.bytes_per_second) if rates.codes(form) else None


def planned_bytes(trial: AllReduceBenchmark, items: int, stand_in: StandIn) -> list[tuple[float, float]]:
    """Bytes (sent, received) across each machine's interface, by the plan's own count; scales of a format included."""
    plans = trial.segments(items).plans or [stand_in(items)]
    each = trial.items(items).num_bytes
    distinct = {id(plan): plan for plan in plans}
    counts = {key: uplink_bytes(plan, trial.topology, each) for key, plan in distinct.items()}
    totals = zip(*(counts[id(plan)] for plan in plans), strict=True)
    return [(sum(m.sent for m in machine), sum(m.received for m in machine)) for machine in totals]


def table(rank: int) -> Tensor:
    """What a rank contributes, over and over: PERIOD fractions in [-1, 1) that float32 holds exactly, as float64."""
    numbers = (torch.arange(PERIOD, dtype=torch.int64) * (2 * rank + 3) + 7 * rank) % PERIOD
    return (numbers.double() * 2 / PERIOD - 1).float().double()


def _fill(tensor: Tensor, values: Tensor) -> None:
    for start in range(0, tensor.numel(), 1000 * PERIOD):
        piece = tensor[start : start + 1000 * PERIOD]
        piece.copy_(values.repeat(-(-piece.numel() // PERIOD))[: piece.numel()])


def _largest_error(tensor: Tensor, exact: Tensor) -> float:
    """Over all numbers; infinite where one is NaN."""
    largest = 0.0
    for start in range(0, tensor.numel(), 1000 * PERIOD):
        piece = tensor[start : start + 1000 * PERIOD].cpu().double()
        error = (piece - exact.repeat(-(-piece.numel() // PERIOD))[: piece.numel()]).abs().max().item()
        largest = max(largest, math.inf if math.isnan(error) else error)
    return largest
