"""Measure an all-reduce: the same tensor on every rank of a job, with the exact answer known.

nccl-tests' habits: warm up, check, repeat; a repeat is a loop of calls without a barrier between them, as long as
the clock needs, and counts for its slowest rank.
"""

import functools
import hashlib
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.execution.segments import Segments, segments
from wirebench.collectives.plan import Collective, Plan
from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather
from wirebench.costmodel.plan_cost import native_seconds, pipelined_seconds, uplink_bytes
from wirebench.exchange.advance import run
from wirebench.gradient.requests import Sum
from wirebench.telemetry.nic import InterfaceCounter
from wirebench.topology.tree import Topology

PERIOD = 1009
MIN_LOOP_SECONDS = 0.02
MAX_LOOP = 200

StandIn = Callable[[int], Plan]
"""The plan by which the engine's own collective is counted, for a number of items."""


class Outcome(NamedTuple):
    """What a check found: see AllReduceResult.max_error and .identical; `seconds` of the call."""

    max_error: float
    identical: bool
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
        self._seconds: list[float] = []
        self._bytes: list[tuple[int, int]] = []
        self._calls = 0

    def segments(self, items: int, item_bytes: int) -> Segments:
        """How a sum is cut, with plans."""
        return segments(functools.partial(self.collective.plan, self.topology), self.topology, items, item_bytes)

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
        told = gather(self.communicator, [error, digest, seconds])
        return Outcome(max(f[0] for f in told), len({f[1] for f in told}) == 1, max(f[2] for f in told))

    def loop_length(self, seconds: float) -> int:
        """Calls a repeat, from the time of one; the same on every rank when `seconds` is."""
        return min(MAX_LOOP, max(1, math.ceil(MIN_LOOP_SECONDS / max(seconds, 1e-9))))

    def repeat(self, tensor: Tensor, calls: int) -> None:
        """Time one loop of calls."""
        self.barrier()
        before = self.nic.read()
        begin = time.perf_counter()
        for _ in range(calls):
            self._sum(tensor)
        self._seconds.append((time.perf_counter() - begin) / calls)
        self._calls += calls
        self.barrier()
        after = self.nic.read()
        if before is not None and after is not None:
            self._bytes.append((after[0] - before[0], after[1] - before[1]))

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


def predicted_seconds(trial: AllReduceBenchmark, items: int, item_bytes: int) -> float | None:
    """The cost model's price; None where the topology does not have the speeds for it."""
    topology, cut = trial.topology, trial.segments(items, item_bytes)
    if cut.plans:
        known = all(branch.links for branch in topology.branches.values())
        return pipelined_seconds(cut.plans, topology, item_bytes, cut.apart) if known else None
    return native_seconds(topology, items * item_bytes) if topology.native else None


def planned_bytes(
    trial: AllReduceBenchmark, items: int, item_bytes: int, stand_in: StandIn
) -> list[tuple[float, float]]:
    """Bytes (sent, received) across each machine's interface, by the plan's own count."""
    plans = trial.segments(items, item_bytes).plans or [stand_in(items)]
    distinct = {id(plan): plan for plan in plans}
    counts = {key: uplink_bytes(plan, trial.topology, item_bytes) for key, plan in distinct.items()}
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
    largest = 0.0
    for start in range(0, tensor.numel(), 1000 * PERIOD):
        piece = tensor[start : start + 1000 * PERIOD].cpu().double()
        largest = max(largest, (piece - exact.repeat(-(-piece.numel() // PERIOD))[: piece.numel()]).abs().max().item())
    return largest
