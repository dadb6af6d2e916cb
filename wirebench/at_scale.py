"""Closed forms in place of plans where there are too many ranks to write every transfer down.

A plan of thousands of ranks has millions of transfers, and rounds that are all alike. The papers' formulas
(closed_forms.py) price them; up to MOST_RANKS ranks the plans themselves are priced.
"""

import math
from collections.abc import Callable

from wirebench import closed_forms
from wirebench.topology import Topology

MOST_RANKS = 16


def sum_seconds(plan: str, topology: Topology, num_bytes: float) -> float:
    """Seconds of an all-reduce by the plan of this name; ValueError for a name without a formula."""
    if plan not in _SUMS:
        known = ", ".join(_SUMS)
        raise ValueError(f"no formula for what {plan!r} costs {topology.size} ranks; there is {known}")
    return _SUMS[plan](topology, num_bytes)


def gather_seconds(plan: str, topology: Topology, num_bytes: float) -> float:
    """Seconds of an all-gather of `num_bytes` from every rank.

    Along a tree or over a server all contributions meet at one rank, which sends them on; else they go round a ring.
    """
    size = topology.size
    alpha, beta = _slowest(topology, num_bytes)
    if plan == "tree":
        rounds = math.ceil(math.log2(size))
        return 2 * rounds * alpha + ((size - 1) + rounds * size) * num_bytes * beta
    if plan == "star":
        return 2 * (size - 1) * alpha + (size - 1) * (1 + size) * num_bytes * beta
    return (size - 1) * (alpha + num_bytes * beta)


def merge_seconds(plan: str, topology: Topology, num_bytes: float) -> float:
    """Seconds of a merge of one indivisible message from every rank."""
    size = topology.size
    alpha, beta = _slowest(topology, num_bytes)
    if plan in ("ring", "star", "blueconnect", "flexreduce", "hierarchical"):
        return 2 * (size - 1) * (alpha + num_bytes * beta)
    return 2 * math.ceil(math.log2(size)) * (alpha + num_bytes * beta)


def route_seconds(topology: Topology, num_bytes: float) -> float:
    """Seconds in which every rank sends parts of `num_bytes` together to all others."""
    alpha, beta = _slowest(topology, num_bytes / topology.size)
    return (topology.size - 1) * alpha + num_bytes * beta


def _slowest(topology: Topology, num_bytes: float) -> tuple[float, float]:
    """(alpha, beta) of the slowest level, for messages of this size."""
    links = [branch.link(num_bytes) for branch in topology.branches.values()]
    slowest = min(links, key=lambda link: link.bytes_per_second)
    return max(link.latency_seconds for link in links), 1 / slowest.bytes_per_second


def _by_line(line: Callable[..., closed_forms.Line]) -> Callable[[Topology, float], float]:
    def seconds(topology: Topology, num_bytes: float) -> float:
        alpha, beta = _slowest(topology, num_bytes / topology.size)
        return line(topology.size, alpha, beta, topology.reduce_seconds_per_byte).seconds(num_bytes)

    return seconds


def _hierarchical(topology: Topology, num_bytes: float) -> float:
    machines = [len(ranks) for ranks in topology.machines]
    low, top = (topology.levels[number][0].link(num_bytes / topology.size) for number in (0, -1))
    local, network = ((link.latency_seconds, 1 / link.bytes_per_second) for link in (low, top))
    return closed_forms.hierarchical(machines, local, network, topology.reduce_seconds_per_byte).seconds(num_bytes)


def _blueconnect(topology: Topology, num_bytes: float) -> float:
    degrees = topology.degrees
    if degrees is None:
        return _SUMS["ring"](topology, num_bytes)
    links = [level[0].link(num_bytes / topology.size) for level in topology.levels]
    alpha = max(link.latency_seconds for link in links)
    return closed_forms.blueconnect_seconds(num_bytes, degrees, [link.bytes_per_second for link in links], alpha)


def _flexreduce(topology: Topology, num_bytes: float) -> float:
    return closed_forms.flexreduce_seconds(num_bytes, topology, _slowest(topology, num_bytes / topology.size)[0])


_SUMS: dict[str, Callable[[Topology, float], float]] = {
    "ring": _by_line(closed_forms.ring),
    "tree": _by_line(closed_forms.binary_tree),
    "star": _by_line(closed_forms.star),
    "recursive_doubling": _by_line(closed_forms.recursive_doubling),
    "halving_doubling": _by_line(closed_forms.halving_doubling),
    "hierarchical": _hierarchical,
    "blueconnect": _blueconnect,
    "flexreduce": _flexreduce,
}
