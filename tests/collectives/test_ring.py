"""The ring's traffic: rounds, neighbours, bytes."""

import pytest

from wirebench.collectives.ring import Ring
from wirebench.topology.tree import Topology

SIZES = range(1, 17)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("size", SIZES)
def test_two_times_p_minus_one_rounds(size):
    assert Ring().plan(Topology.flat(size), 4 * size).rounds == 2 * (size - 1)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("size", SIZES)
def test_every_rank_sends_two_p_minus_one_of_p_parts(size):
    items = 6 * size
    plan = Ring().plan(Topology.flat(size), items)
    assert {plan.sent_items(rank) for rank in range(size)} == {2 * (size - 1) * items // size}


@pytest.mark.parametrize(("size", "items"), [(3, 10), (4, 2), (5, 7), (8, 9)])
def test_uneven_chunks_differ_by_at_most_one_item_a_round(size, items):
    plan = Ring().plan(Topology.flat(size), items)
    assert sum(plan.sent_items(rank) for rank in range(size)) == 2 * (size - 1) * items
    assert max(t.stop - t.start for r in plan.reduce for t in r) == -(items // -size)


def test_everybody_talks_to_neighbours_only():
    plan = Ring().plan(Topology.flat(5), 10)
    assert {(t.dst - t.src) % 5 for r in plan.reduce for t in r} == {1}
    assert {(t.dst - t.src) % 5 for r in plan.copy for t in r} == {4}


def test_the_ring_enters_and_leaves_every_machine_once():
    topology = Topology.of_hosts(["a", "b", "c", "a", "b", "c"])
    plan = Ring().plan(topology, 6)
    assert topology.ranks == (0, 3, 1, 4, 2, 5)
    assert {(t.src, t.dst) for r in plan.reduce for t in r} == {(0, 3), (3, 1), (1, 4), (4, 2), (2, 5), (5, 0)}
    assert sorted((t.start, t.dst) for t in plan.reduce[-1]) == list(enumerate(topology.ranks))


def test_rank_r_ends_the_reduce_half_with_chunk_r():
    plan = Ring().plan(Topology.flat(4), 8)
    assert sorted((t.dst, t.start, t.stop) for t in plan.reduce[-1]) == [(r, 2 * r, 2 * r + 2) for r in range(4)]
