"""Recursive doubling and halving-doubling: rounds, partners and bytes, for powers of two and folded."""

from collections.abc import Callable

import pytest

from wirebench import collectives
from wirebench.collectives.halving_doubling import HalvingDoubling
from wirebench.collectives.plan import Transfer, check
from wirebench.collectives.recursive_doubling import RecursiveDoubling
from wirebench.errors import UserError
from wirebench.topology.tree import Topology

POWERS = [1, 2, 4, 8, 16, 32]
BOTH: list[Callable[[], HalvingDoubling]] = [HalvingDoubling, lambda: HalvingDoubling("halving")]

# Table II of arXiv 1811.11141 at 8 ranks: what counts alpha, beta and gamma, the latter two in eighths of the message.
TABLE = {
    "tree": (6, 48, 24),
    "recursive_doubling": (3, 24, 24),
    "halving_doubling": (6, 14, 7),
    "ring": (14, 14, 7),
}


@pytest.mark.parametrize("name", TABLE)
def test_the_counts_of_table_two(name: str):
    plan = collectives.build(name).plan(Topology.flat(8), 8)
    assert plan is not None
    longest = [max(t.stop - t.start for t in transfers) for transfers in (*plan.reduce, *plan.copy)]
    assert (plan.rounds, sum(longest), sum(longest[: len(plan.reduce)])) == TABLE[name]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("size", range(1, 34))
def test_rounds_are_logarithmic_and_two_more_for_a_fold(size: int):
    log2 = size.bit_length() - 1
    folding = 0 if size in POWERS else 2
    assert RecursiveDoubling().plan(Topology.flat(size), 64).rounds == log2 + folding
    assert {make().plan(Topology.flat(size), 64).rounds for make in BOTH} == {2 * log2 + folding}


@pytest.mark.parametrize("size", POWERS)
def test_what_a_rank_sends(size: int):
    topology, items = Topology.flat(size), 3 * size
    everything = RecursiveDoubling().plan(topology, items)
    assert {everything.sent_items(rank) for rank in range(size)} == {(size.bit_length() - 1) * items}
    for make in BOTH:
        halves = make().plan(topology, items)
        assert {halves.sent_items(rank) for rank in range(size)} == {2 * (size - 1) * items // size}


def test_partners_swap_everything():
    plan = RecursiveDoubling().plan(Topology.flat(4), 5)
    assert plan.reduce == (
        (Transfer(0, 1, 0, 5), Transfer(1, 0, 0, 5), Transfer(2, 3, 0, 5), Transfer(3, 2, 0, 5)),
        (Transfer(0, 2, 0, 5), Transfer(1, 3, 0, 5), Transfer(2, 0, 0, 5), Transfer(3, 1, 0, 5)),
    )
    assert plan.copy == ()


@pytest.mark.parametrize(("distance", "order"), [("doubling", (1, 2, 4)), ("halving", (4, 2, 1))])
def test_halves_go_to_partners_at_these_distances(distance: str, order: tuple[int, ...]):
    plan = collectives.build("halving_doubling", distance=distance).plan(Topology.flat(8), 64)
    assert plan is not None
    assert [{abs(t.src - t.dst) for t in transfers} for transfers in plan.reduce] == [{d} for d in order]
    assert [{t.stop - t.start for t in transfers} for transfers in plan.reduce] == [{32}, {16}, {8}]


def test_halving_the_distance_leaves_chunk_r_with_rank_r():
    last = HalvingDoubling("halving").plan(Topology.flat(4), 8).reduce[-1]
    assert sorted((t.dst, t.start, t.stop) for t in last) == [(r, 2 * r, 2 * r + 2) for r in range(4)]


def test_a_fold_pairs_neighbours_and_hands_the_result_back():
    for plan in (RecursiveDoubling().plan(Topology.flat(6), 3), HalvingDoubling().plan(Topology.flat(6), 3)):
        assert plan.reduce[0] == (Transfer(1, 0, 0, 3), Transfer(3, 2, 0, 3))
        assert plan.copy[-1] == (Transfer(0, 1, 0, 3), Transfer(2, 3, 0, 3))
        between = {rank for transfers in plan.reduce[1:] for t in transfers for rank in (t.src, t.dst)}
        assert between == {0, 2, 4, 5}


def test_places_are_those_of_the_leaf_order():
    scattered = Topology.of_hosts(["a", "b", "a", "b"])
    for plan in (RecursiveDoubling().plan(scattered, 8), HalvingDoubling().plan(scattered, 8)):
        first, second = ({frozenset((t.src, t.dst)) for t in transfers} for transfers in plan.reduce)
        assert first == {frozenset((0, 2)), frozenset((1, 3))}, "the first round stays within machines"
        assert second == {frozenset((0, 1)), frozenset((2, 3))}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 8, 12, 21])
def test_halving_the_distance_is_right_too(size: int):
    for items in (0, 1, 2, size - 1, size, size + 1, 64):
        check(HalvingDoubling("halving").plan(Topology.flat(size), items), size, items)


def test_another_distance_is_refused():
    with pytest.raises(UserError, match="doubling"):
        collectives.build("halving_doubling", distance="tripling")
