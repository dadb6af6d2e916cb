"""Fit the cost model to measured all-reduces: start-up times and rates per level of the topology.

All parameters are fitted at once, to the logarithm of predicted over measured seconds, so that a millisecond and a
minute count alike; a robust loss keeps a few disturbed measurements from bending the rest. A level starts as one
straight line, seconds over bytes. Where that predicts cells badly, its line is broken in two at the size of message
that helps most, and again, as long as breaking helps. A cell is one measured all-reduce (an AllReduceResult).
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from wirebench import collectives
from wirebench.collectives.execution.segments import segments
from wirebench.collectives.plan import Plan
from wirebench.costmodel.plan_cost import native_seconds, pipelined_seconds
from wirebench.errors import UserError
from wirebench.record.collective_results import AllReduceResult
from wirebench.topology.tree import Link, Topology

Breaks = tuple[tuple[float, ...], ...]
"""For each level, and then for what all messages share, the sizes of message at which a new line begins."""

CANDIDATES = (512.0, 2048.0, 8192.0, 32768.0, 131072.0, 524288.0)
LATENCY_RANGE = (1e-8, 1.0)
RATE_RANGE = (1e5, 1e12)
GAMMA_RANGE = (1e-13, 1e-6)
EDGE = 1.05
"""A parameter within this factor of an edge of its range counts as lying at the edge."""
TOLERANCE = 0.1
ROBUST_SCALE = 0.05
WORTH_A_BREAK = 0.85
MAX_BREAKS = 3


@dataclass(frozen=True)
class Fit:
    """A fitted topology and how well it fits.

    residuals  predicted / measured - 1 of every cell, in the order of the cells
    r_squared  share of the variance of the logarithms of seconds that the prediction explains
    within     share of cells predicted to within TOLERANCE
    """

    topology: Topology
    residuals: tuple[float, ...]
    r_squared: float
    within: float

    @property
    def numbers(self) -> dict[str, float]:
        """The quality of the fit, as a topology file keeps it."""
        errors = [abs(residual) for residual in self.residuals]
        return {
            "cells": float(len(errors)),
            "r_squared": self.r_squared,
            "within_10_percent": self.within,
            "median_error": float(np.median(errors)),
            "largest_error": max(errors),
        }

    @property
    def constants(self) -> int:
        """How many speeds were fitted to cells of plans: two for each piece of a line, and the costs of adding and of
        a round.
        """
        lines = [*(level[0].links for level in self.topology.levels), self.topology.shared]
        return 2 * sum(map(len, lines)) + 2

    @property
    def unseen(self) -> list[str]:
        """The speeds that the cells do not determine, in words: fitted to the fast edge of the range that is tried."""
        lines = {f"level {number}": level[0].links for number, level in enumerate(self.topology.levels)}
        words = []
        for name, line in {**lines, "shared": self.topology.shared}.items():
            if any(link.latency_seconds < LATENCY_RANGE[0] * EDGE for link in line):
                words.append(f"start-up time of {name}")
            if any(link.bytes_per_second > RATE_RANGE[1] / EDGE for link in line):
                words.append(f"rate of {name}")
        if self.topology.reduce_seconds_per_byte < GAMMA_RANGE[0] * EDGE:
            words.append("cost of adding")
        return words


@dataclass(frozen=True)
class _Case:
    """A cell with the plans of its segments; cells of the engine's own collective have none."""

    cell: AllReduceResult
    plans: tuple[Plan, ...] = field(repr=False)
    apart: int


def fit(topology: Topology, cells: Sequence[AllReduceResult]) -> Fit:
    """The speeds with which the cost model predicts `cells` best; `topology` gives the tree, its speeds do not count.

    Raises ValueError where there are fewer than three cells of plans, or cells of another number of ranks.
    """
    wrong = {cell.ranks for cell in cells} - {topology.size}
    if wrong:
        raise ValueError(f"cells of {sorted(wrong)} ranks do not belong to a topology of {topology.size}")
    cases = [_case(topology, cell) for cell in cells]
    planned = [case for case in cases if case.plans]
    if len(planned) < 3:
        raise ValueError(f"a fit needs at least 3 cells of plans, got {len(planned)}")
    fitted = _fit_plans(topology, planned)
    fitted = replace(fitted, native=_fit_native(topology.size, [case.cell for case in cases if not case.plans]))
    return judge(fitted, cells)


def judge(topology: Topology, cells: Sequence[AllReduceResult]) -> Fit:
    """How well a topology with speeds predicts cells, which need not be those that it was fitted to."""
    measured = np.array([cell.median for cell in cells])
    predicted = np.array([_price(topology, _case(topology, cell)) for cell in cells])
    logs = np.log(measured)
    unexplained = float(((np.log(predicted) - logs) ** 2).sum())
    spread = float(((logs - logs.mean()) ** 2).sum())
    residuals = predicted / measured - 1
    within = float((np.abs(residuals) <= TOLERANCE).mean())
    return Fit(topology, tuple(residuals.tolist()), 1 - unexplained / spread if spread else 1.0, within)


def _case(topology: Topology, cell: AllReduceResult) -> _Case:
    if cell.segments == 0:
        return _Case(cell, (), 0)
    plan_of = functools.partial(collectives.build(cell.collective).plan, topology)
    cut = segments(plan_of, topology, cell.items, cell.item_bytes)
    if (len(cut.plans), cut.plans[0].rounds) != (cell.segments, cell.rounds):
        raise UserError(
            f"{cell.collective} of {cell.items} floats ran in {cell.segments} segments of {cell.rounds} rounds, now it "
            f"would be {len(cut.plans)} of {cut.plans[0].rounds}: measured by another version"
        )
    return _Case(cell, tuple(cut.plans), cut.apart)


def _price(topology: Topology, case: _Case) -> float:
    if not case.plans:
        return native_seconds(topology, case.cell.num_bytes)
    return max(pipelined_seconds(case.plans, topology, case.cell.item_bytes, case.apart), 1e-9)


def _fit_plans(topology: Topology, cases: Sequence[_Case]) -> Topology:
    """The topology with the best speeds; lines are broken as long as that makes the loss clearly smaller."""
    breaks: Breaks = ((),) * (len(topology.levels) + 1)
    best, loss, logs = _solve(topology, cases, breaks, None)
    for _ in range(MAX_BREAKS):
        if all(abs(_price(best, case) / case.cell.median - 1) < TOLERANCE / 2 for case in cases):
            break
        tries = []
        for number, line in enumerate(breaks):
            for candidate in CANDIDATES:
                if candidate not in line:
                    broken = (*breaks[:number], tuple(sorted((*line, candidate))), *breaks[number + 1 :])
                    tries.append((*_solve(topology, cases, broken, _widened(breaks, broken, logs)), broken))
        next_best, next_loss, next_logs, next_breaks = min(tries, key=lambda each: each[1])
        if next_loss > WORTH_A_BREAK * loss:
            break
        best, loss, logs, breaks = next_best, next_loss, next_logs, next_breaks
    return best


def _solve(
    topology: Topology, cases: Sequence[_Case], breaks: Breaks, start: NDArray[np.float64] | None
) -> tuple[Topology, float, NDArray[np.float64]]:
    """The best speeds for these breaks, their loss, and the logarithms of all parameters."""
    measured = np.log([case.cell.median for case in cases])
    lower, upper = _bounds(breaks)

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        candidate = _with_speeds(topology, breaks, logs)
        return np.log([_price(candidate, case) for case in cases]) - measured

    first = _start(breaks) if start is None else start
    solution = least_squares(
        residuals, np.clip(first, lower, upper), bounds=(lower, upper), loss="soft_l1", f_scale=ROBUST_SCALE,
        max_nfev=40, diff_step=1e-3,
    )  # fmt: skip
    return _with_speeds(topology, breaks, solution.x), float(solution.cost), solution.x


def _with_speeds(topology: Topology, breaks: Breaks, logs: NDArray[np.float64]) -> Topology:
    """The topology with the speeds of a solution.

    logs  logarithms of (latency, rate) for every piece of every line, then of gamma and of a round's cost
    """
    values = iter(np.exp(logs).tolist())
    lines = [tuple(Link(next(values), next(values), start) for start in (0.0, *line)) for line in breaks]
    dressed = topology.with_links(lines[:-1])
    return replace(dressed, shared=lines[-1], reduce_seconds_per_byte=next(values), round_seconds=next(values))


def _bounds(breaks: Breaks) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    pieces = sum(1 + len(line) for line in breaks)
    ranges = [LATENCY_RANGE, RATE_RANGE] * pieces + [GAMMA_RANGE, LATENCY_RANGE]
    return np.log([low for low, _ in ranges]), np.log([high for _, high in ranges])


def _start(breaks: Breaks) -> NDArray[np.float64]:
    """Plausible speeds: 50 us and 1 GB/s inside machines, 100 us and 100 MB/s above them."""
    lines = [(5e-5, 1e9), *[(1e-4, 1e8)] * (len(breaks) - 2), (1e-5, 1e10)]
    values = [value for line, cuts in zip(lines, breaks, strict=True) for value in line * (1 + len(cuts))]
    return np.log([*values, 1e-10, 1e-5])


def _widened(old: Breaks, new: Breaks, logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Start values for `new` from a solution for `old`: a new piece begins as the one that it is cut from."""
    values, place = [], 0
    for old_line, new_line in zip(old, new, strict=True):
        pieces = [logs[place + 2 * i : place + 2 * i + 2] for i in range(1 + len(old_line))]
        starts = (0.0, *old_line)
        for start in (0.0, *new_line):
            values += list(pieces[max(i for i, begin in enumerate(starts) if begin <= start)])
        place += 2 * len(pieces)
    return np.array([*values, *logs[place:]])


def _fit_native(size: int, cells: Sequence[AllReduceResult]) -> tuple[Link, ...]:
    """The engine's own all-reduce: straight lines through neighbouring sizes, so that it costs at each what it took.

    Below the smallest size it costs what that one does. Nothing is fitted: the engine's algorithm is not known, and
    changes with the size.
    """
    by_size: dict[int, list[float]] = {}
    for cell in cells:
        by_size.setdefault(cell.num_bytes, []).append(cell.median)
    points = sorted((num_bytes, math.exp(float(np.mean(np.log(s))))) for num_bytes, s in by_size.items())
    if not points:
        return ()
    factor = 2 * (size - 1) / size
    if len(points) == 1:
        points = [(0, points[0][1] / 2), *points]
    links = [Link(points[0][1], factor / 1e-15)] if points[0][0] else []
    for (low, low_seconds), (high, high_seconds) in pairwise(points):
        # Measured times may fall where sizes rise; a rate must stay positive.
        slope = max((high_seconds - low_seconds) / (high - low), 1e-15)
        links.append(Link(low_seconds - slope * low, factor / slope, float(low) if links else 0.0))
    return tuple(links)
