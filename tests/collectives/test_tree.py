"""The tree's pairs: gs-SGD's, round by round."""

import pytest

from wirebench.collectives.tree import Tree
from wirebench.topology.tree import Topology

# (sender, receiver) of every reduce round, by number of ranks: Algorithm 1 of arXiv 2108.06004, lines 8-23.
ROUNDS = {
    1: [],
    2: [[(1, 0)]],
    3: [[(1, 0)], [(2, 0)]],
    4: [[(1, 0), (3, 2)], [(2, 0)]],
    5: [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]],
    6: [[(1, 0), (3, 2), (5, 4)], [(2, 0)], [(4, 0)]],
    7: [[(1, 0), (3, 2), (5, 4)], [(2, 0), (6, 4)], [(4, 0)]],
    8: [[(1, 0), (3, 2), (5, 4), (7, 6)], [(2, 0), (6, 4)], [(4, 0)]],
    9: [[(1, 0), (3, 2), (5, 4), (7, 6)], [(2, 0), (6, 4)], [(4, 0)], [(8, 0)]],
    10: [[(1, 0), (3, 2), (5, 4), (7, 6), (9, 8)], [(2, 0), (6, 4)], [(4, 0)], [(8, 0)]],
    11: [[(1, 0), (3, 2), (5, 4), (7, 6), (9, 8)], [(2, 0), (6, 4), (10, 8)], [(4, 0)], [(8, 0)]],
    12: [[(1, 0), (3, 2), (5, 4), (7, 6), (9, 8), (11, 10)], [(2, 0), (6, 4), (10, 8)], [(4, 0)], [(8, 0)]],
    13: [[(1, 0), (3, 2), (5, 4), (7, 6), (9, 8), (11, 10)], [(2, 0), (6, 4), (10, 8)], [(4, 0), (12, 8)], [(8, 0)]],
    14: [
        [(1, 0), (3, 2), (5, 4), (7, 6), (9, 8), (11, 10), (13, 12)],
        [(2, 0), (6, 4), (10, 8)],
        [(4, 0), (12, 8)],
        [(8, 0)],
    ],
    15: [
        [(1, 0), (3, 2), (5, 4), (7, 6), (9, 8), (11, 10), (13, 12)],
        [(2, 0), (6, 4), (10, 8), (14, 12)],
        [(4, 0), (12, 8)],
        [(8, 0)],
    ],
    16: [
        [(1, 0), (3, 2), (5, 4), (7, 6), (9, 8), (11, 10), (13, 12), (15, 14)],
        [(2, 0), (6, 4), (10, 8), (14, 12)],
        [(4, 0), (12, 8)],
        [(8, 0)],
    ],
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("size", range(1, 17))
def test_the_pairs_are_those_of_the_paper(size):
    plan = Tree().plan(Topology.flat(size), 3)
    assert [[(t.src, t.dst) for t in r] for r in plan.reduce] == ROUNDS[size]
    assert plan.rounds == 2 * (size - 1).bit_length()


def test_every_message_is_whole():
    plan = Tree().plan(Topology.flat(6), 7)
    assert {(t.start, t.stop) for r in (*plan.reduce, *plan.copy) for t in r} == {(0, 7)}


def test_the_copy_half_is_the_broadcast_from_the_root():
    plan = Tree().plan(Topology.flat(4), 1)
    assert [[(t.src, t.dst) for t in r] for r in plan.copy] == [[(0, 2)], [(0, 1), (2, 3)]]
