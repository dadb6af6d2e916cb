"""What the papers' formulas and plain reckoning say, for comparing with what the product computes otherwise.

Symbols are those of costmodel/formulas.py. Sources: MG-WFBP (Shi and Chu, INFOCOM 2019), Table II, and Thakur,
Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005; FlexReduce (Lee et
al., DAC 2020), Eq. 1 to 11, with the slips of their printed indices put right: Eq. 3's minimum runs over 0 <= k <= l,
which is what Eq. 8 to 10 give.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from wirebench.collectives.plan import Plan, all_messages
from wirebench.costmodel.formulas import CostLine, ring
from wirebench.costmodel.routes import DirectedLink, network_of
from wirebench.gradient.schedule import Cost, LayerCost, ready_times
from wirebench.topology.tree import Branch, Topology

__all__ = ["CostLine", "ring"]


def binary_tree(size: int, alpha: float, beta: float, gamma: float = 0.0) -> CostLine:
    """Binomial tree: a = 2 r alpha, b = r (2 beta + gamma), r = ceil(log2 N). MG-WFBP, Table II; gs-SGD, Eq. 1.

    For N that are no power of two a rank without a partner passes to the next round, so that the logarithm is rounded
    up.
    """
    rounds = _log2_up(size)
    return CostLine(2 * rounds * alpha, rounds * (2 * beta + gamma))


def star(size: int, alpha: float, beta: float, gamma: float = 0.0) -> CostLine:
    """One server: a = 2(N-1) alpha, b = (N-1)(2 beta + gamma): its port takes and sends every message, one by one."""
    return CostLine(2 * (size - 1) * alpha, (size - 1) * (2 * beta + gamma))


def recursive_doubling(size: int, alpha: float, beta: float, gamma: float = 0.0) -> CostLine:
    """Recursive doubling: a = r alpha, b = r (beta + gamma), r = log2 N. MG-WFBP, Table II.

    For N that are no power of two, r belongs to the largest one below, and `folding` comes on top.
    """
    rounds = _log2_down(size)
    return _plus(CostLine(rounds * alpha, rounds * (beta + gamma)), folding(size, alpha, beta, gamma))


def halving_doubling(size: int, alpha: float, beta: float, gamma: float = 0.0) -> CostLine:
    """Recursive halving and doubling (Rabenseifner): a = 2 alpha log2 N, b = 2 beta + gamma - (2 beta + gamma)/N.

    MG-WFBP, Table II. For N that are no power of two, both belong to the largest one below, and `folding` comes on top.
    """
    rounds = _log2_down(size)
    share = 1 - 0.5**rounds
    return _plus(CostLine(2 * rounds * alpha, share * (2 * beta + gamma)), folding(size, alpha, beta, gamma))


def folding(size: int, alpha: float, beta: float, gamma: float = 0.0) -> CostLine:
    """What N that are no power of two add: a = 2 alpha, b = 2 beta + gamma; nothing for powers of two.

    Derived from our plans, which fold in the simplest way of Thakur et al., Section 4.5: each rank beyond the largest
    power of two sends everything to a partner, and gets the result from it at the end.
    """
    return CostLine(0.0, 0.0) if size == 1 << _log2_down(size) else CostLine(2 * alpha, 2 * beta + gamma)


def hierarchical(
    machines: Sequence[int],
    local: tuple[float, float],
    network: tuple[float, float],
    gamma: float = 0.0,
) -> CostLine:
    """Local trees to one master per machine, a ring of the masters, local trees back (Jia et al. 2018, as FlexReduce
    describes it), for machines of `machines` ranks each.

    local, network  (alpha, beta) inside a machine and between machines

    a = 2 r alpha_local + 2(M-1) alpha_network, b = r (2 beta_local + gamma) + (M-1)/M (2 beta + gamma), with
    r = ceil(log2(largest machine)) and beta the slower one of local and network: a master's messages cross both links.
    In one machine alone every rank is a master: a local ring.
    """
    if len(machines) == 1:
        return ring(machines[0], *local, gamma)
    trees = binary_tree(max(machines), *local, gamma)
    return _plus(trees, ring(len(machines), network[0], max(local[1], network[1]), gamma))


def reduce_scatter_seconds(n: float, d: int, w: float, alpha: float) -> float:
    """T_r(n, d, w) = (d-1)(alpha + n/(d w)): the reduce-scatter of n bytes among d ranks. FlexReduce, Eq. 2."""
    return (d - 1) * (alpha + n / (d * w))


def flexreduce_seconds(n: float, topology: Topology, alpha: float) -> float:
    """FlexReduce on any tree, whose branches have the rates w_x of `topology`'s links. FlexReduce, Eq. 4 to 6.

    T_FR = 2 sum_l max_{k<=l} max_{x in V_k} T_r(n / prod_{i=k}^{l-1} d_{p_x^i}, d_{p_x^l}, w_x),
    p_x^i being x's ancestor at level i. Of `topology`'s links only the rates (for the largest messages) are read:
    `alpha` holds for every message. Raises ValueError where a link has no speed.

    The formula leaves out the messages beyond d - 1 that asymmetric trees need, and it is too small below the level in
    question where a destination holds nothing of what it is to sum.
    """
    slowest = [0.0] * _depth(topology)
    for level, seconds in _level_costs(n, topology, alpha):
        slowest[level] = max(slowest[level], seconds)
    return 2 * sum(slowest)


def blueconnect_seconds(n: float, deltas: Sequence[int], omegas: Sequence[float], alpha: float) -> float:
    """BlueConnect on a symmetric tree. FlexReduce, Eq. 3.

    deltas, omegas  degree and bytes per second of each level, from the lowest to the root

    T_blc = 2 sum_l T_r(n / prod_{i<l} delta_i, delta_l, min_{k<=l} omega_k / prod_{j<k} delta_j)
    """
    total, below, slowest = 0.0, 1, math.inf
    for delta, omega in zip(deltas, omegas, strict=True):
        slowest = min(slowest, omega / below)
        total += reduce_scatter_seconds(n / below, delta, slowest, alpha)
        below *= delta
    return 2 * total


def finish_seconds(layers: Sequence[LayerCost], groups: Sequence[range], cost: Cost) -> float:
    """Seconds from the start of the backward pass until the last message has arrived: MG-WFBP, Eq. 7 and 8.

    Messages go one after the other, each when all its gradients are there.
    """
    ready, free = ready_times(layers), 0.0
    for group in groups:
        free = max(free, ready[group.stop - 1]) + cost(sum(layers[i].numel for i in group))
    return free


def link_bytes(plan: Plan, topology: Topology, item_bytes: float) -> dict[DirectedLink, float]:
    """Bytes that cross each link in each direction in all rounds together; links that carry nothing are left out."""
    total: defaultdict[DirectedLink, float] = defaultdict(float)
    network = network_of(topology.root)
    for message, _ in all_messages(plan):
        for link in network.route(message.src, message.dst).links:
            total[link] += (message.stop - message.start) * item_bytes
    return dict(total)


def _log2_down(size: int) -> int:
    return size.bit_length() - 1


def _log2_up(size: int) -> int:
    return (size - 1).bit_length()


def _plus(one: CostLine, other: CostLine) -> CostLine:
    return CostLine(one.a + other.a, one.b + other.b)


def _level_costs(n: float, topology: Topology, alpha: float) -> Iterator[tuple[int, float]]:
    """(l, T_r) for every kind of branch x and every level l from its own to the root's."""
    for lineage in _lineages(topology):
        held, rate = n, _rate(lineage[0])
        for level, ancestor in enumerate(lineage, _depth(topology) - len(lineage)):
            yield level, reduce_scatter_seconds(held, ancestor.degree, rate, alpha)
            held /= ancestor.degree


def _depth(topology: Topology) -> int:
    return len(topology.levels)


def _rate(branch: Branch) -> float:
    return branch.link(math.inf).bytes_per_second


def _lineages(topology: Topology) -> list[tuple[Branch, ...]]:
    """Each branch with those above it, up to the root."""
    branches = topology.branches
    return [tuple(branches[path[:depth]] for depth in range(len(path), -1, -1)) for path in branches]
