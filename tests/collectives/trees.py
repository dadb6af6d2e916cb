"""What the tests of collectives share: random trees, a plan carried out on numbers, the items on every link."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from wirebench.collectives.plan import Move, Plan, Round, Transfer
from wirebench.topology.tree import Branch, Topology

MAX_DEPTH, MAX_DEGREE, MAX_RANKS = 4, 5, 24


@st.composite
def trees(draw: st.DrawFn) -> Topology:
    """Any tree of at most MAX_DEPTH levels of branches, leaves at unequal depths, ranks in any order."""
    left = MAX_RANKS

    def grow(depth: int) -> Branch:
        nonlocal left
        children: list[Branch | int] = []
        for _ in range(draw(st.integers(1, MAX_DEGREE))):
            if left and depth < MAX_DEPTH and draw(st.booleans()):
                children.append(grow(depth + 1))
            elif left:
                left -= 1
                children.append(MAX_RANKS - left - 1)
        return Branch(tuple(children))

    root = grow(1)
    return Topology(renumbered(root, draw(st.permutations(root.ranks))))


def renumbered(branch: Branch, names: Sequence[int]) -> Branch:
    """The same branch with rank r called names[r]."""
    return Branch(tuple(names[c] if isinstance(c, int) else renumbered(c, names) for c in branch.children))


def under_a_switch(topology: Topology) -> Topology:
    """The same tree below one more branch, of degree 1."""
    return Topology(Branch((topology.root,)))


class Returned:
    """A plan in which rank 0 gives its items away and gets the sums back, to hand them on: what `fresh` is for."""

    def plan(self, topology: Topology, items: int) -> Plan:
        back = (Transfer(1, 0, 0, items, fresh=True),)
        return Plan("returned", ((Transfer(0, 1, 0, items),), back), ((Transfer(0, 1, 0, items),),))


hosts = st.lists(st.sampled_from("abcd"), min_size=1, max_size=MAX_RANKS).map(Topology.of_hosts)
topologies = trees() | hosts


def carry_out(plan: Plan, inputs: np.ndarray) -> np.ndarray:
    """What every rank holds after `plan`, having held `inputs` (ranks, items)."""
    held = inputs.copy()
    for number, transfers in enumerate((*plan.reduce, *plan.copy)):
        before = held.copy()
        for t in transfers:
            content = before[t.src, t.start : t.stop]
            if t.fresh or number >= len(plan.reduce):
                held[t.dst, t.start : t.stop] = content
            else:
                held[t.dst, t.start : t.stop] += content
    return held


def complete(rounds: Sequence[Round], topology: Topology, items: int, level: int) -> dict[int, set[int]]:
    """The items of which each rank holds the sum over its branch at this level, after reduce rounds."""
    size = topology.size
    shares = np.broadcast_to(np.eye(size, dtype=int)[:, None], (size, items, size)).reshape(size, items * size)
    scaled = tuple(
        tuple(t._replace(start=t.start * size, stop=t.stop * size) for t in transfers) for transfers in rounds
    )
    held = carry_out(Plan("half", scaled, ()), shares).reshape(size, items, size)
    below = {rank: branch.ranks for branch in topology.levels[level] for rank in branch.ranks}
    wanted = {rank: np.isin(range(size), below[rank]) for rank in range(size)}
    return {r: {i for i in range(items) if (held[r, i] == wanted[r]).all()} for r in range(size)}


def check_gathering(rounds: Sequence[Sequence[Move]], size: int) -> None:
    """Every contribution reaches every rank once, in one message for a pair and round."""
    has = [{rank} for rank in range(size)]
    for moves in rounds:
        before = [set(each) for each in has]
        assert len({(m.src, m.dst) for m in moves}) == len(moves), "a pair shares one message"
        for move in moves:
            assert set(move.origins) <= before[move.src], "a rank passes on what it does not have yet"
            assert not set(move.origins) & has[move.dst], "a contribution arrives twice"
            assert len(set(move.origins)) == len(move.origins), "a contribution arrives twice"
            has[move.dst] |= set(move.origins)
    assert has == [set(range(size))] * size


def crossings(rounds: Sequence[Round], topology: Topology) -> tuple[Counter, Counter]:
    """Items that go up and down each link. A link is named by the node below it: a branch's path, or a rank."""
    up: Counter = Counter()
    down: Counter = Counter()
    nodes = {rank: {*chain, rank} for rank, chain in topology.chains.items()}
    for t in (t for transfers in rounds for t in transfers):
        up.update(dict.fromkeys(nodes[t.src] - nodes[t.dst], t.stop - t.start))
        down.update(dict.fromkeys(nodes[t.dst] - nodes[t.src], t.stop - t.start))
    return up, down
