"""Trees of machines: how layouts are read, what is asked of a tree, and how it is drawn."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import examples
from wirebench.errors import UserError
from wirebench.topology.ascii import draw, node_names, rate, spans, speeds
from wirebench.topology.tree import MAX_RANKS, Branch, Link, Topology

LAYOUTS = st.recursive(
    st.integers(1, 5).map(str),
    lambda inner: st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"({'+'.join(parts)})"),
    max_leaves=6,
)


def machine(*ranks):
    return Branch(ranks)


@pytest.mark.parametrize(
    ("layout", "root"),
    [
        ("4", machine(0, 1, 2, 3)),
        ("2+3", Branch((machine(0, 1), machine(2, 3, 4)))),
        (" 1 + 1 ", Branch((machine(0), machine(1)))),
        ("(2+2)+(3+1)", Branch((Branch((machine(0, 1), machine(2, 3))), Branch((machine(4, 5, 6), machine(7)))))),
        ("(2+1)+1", Branch((Branch((machine(0, 1), machine(2))), machine(3)))),
        ("(2)+(3)", Branch((machine(0, 1), machine(2, 3, 4)))),
    ],
)
def test_layouts_are_read(layout, root):
    assert Topology.parse(layout).root == root


def test_there_is_a_limit():
    assert Topology.parse(str(MAX_RANKS)).size == MAX_RANKS
    with pytest.raises(UserError, match=str(MAX_RANKS)):
        Topology.parse(str(MAX_RANKS + 1))


@examples(100)
@given(LAYOUTS)
def test_a_layout_says_all_of_a_parsed_tree(layout):
    topology = Topology.parse(layout)
    assert Topology.parse(topology.layout) == topology
    assert topology.ranks == tuple(range(topology.size))
    assert sum(len(ranks) for ranks in topology.machines) == topology.size
    assert sum(len(level) for level in topology.levels) == len(topology.branches)
    for rank, chain in topology.chains.items():
        assert chain[0] == () and rank in topology.branches[chain[-1]].children
        assert all(rank in topology.branches[path].ranks for path in chain)


def test_hosts_become_machines():
    topology = Topology.of_hosts(["b", "a", "b", "c", "a"])
    assert topology.machines == ((0, 2), (1, 4), (3,))
    assert topology.ranks == (0, 2, 1, 4, 3)
    assert topology.position == {0: 0, 2: 1, 1: 2, 4: 3, 3: 4}
    assert Topology.of_hosts(["a"] * 3) == Topology.flat(3)
    assert Topology.of_hosts(["a", "b"]).layout == "1+1"


def test_machines_are_in_leaf_order():
    topology = Topology(Branch((Branch((2, 1)), 0, Branch((3,)))))
    assert topology.machines == ((2, 1), (0,), (3,))
    assert topology.layout == "2+1+1"
    assert node_names(topology) == {(): "machine 1", (0,): "machine 0", (2,): "machine 2"}


@pytest.mark.parametrize(
    ("layout", "degrees"),
    [("4", (4,)), ("3+3", (3, 2)), ("(2+2)+(2+2)+(2+2)", (2, 2, 3)), ("2+3", None), ("(2+2)+2", None)],
)
def test_degrees_are_those_of_symmetric_trees(layout, degrees):
    assert Topology.parse(layout).degrees == degrees


def test_levels_are_dressed_from_the_lowest():
    slow, fast, middle = Link(1, 1), Link(0, 100), Link(0.5, 10)
    topology = Topology.parse("(2+2)+3").with_links([fast, (middle, Link(0.2, 20, 64)), slow])
    assert topology.root.links == (slow,)
    assert topology.branches[0, 0].links == (fast,)
    # A level is a distance from the root, so the machine beside the switch has the switch's speed.
    assert topology.branches[0,].links == topology.branches[1,].links == (middle, Link(0.2, 20, 64))
    assert topology.branches[0,].link(63.9) == middle
    assert topology.branches[0,].link(64) == Link(0.2, 20, 64)
    with pytest.raises(UserError, match="3 levels of links, but speeds are given for 2"):
        Topology.parse("(2+2)+3", [fast, slow])


@pytest.mark.parametrize("values", [(math.inf, 1), (math.nan, 1), (0, 0), (0, -1), (0, 1, -1)])
def test_links_are_possible_ones(values):
    with pytest.raises(ValueError, match="a link needs"):
        Link(*values)


def test_trees_are_possible_ones():
    for ranks in ((0, 2), (0, 0), (1, 2)):
        with pytest.raises(AssertionError, match="leaves"):
            Topology(Branch(ranks))
    with pytest.raises(AssertionError, match="child"):
        Branch(())
    with pytest.raises(AssertionError, match="first link starts at 0"):
        Branch((0,), (Link(0, 1, 5),))


def test_a_drawing_of_one_machine():
    assert draw(Topology.flat(1)) == "machine 0   rank 0"


@examples(50)
@given(LAYOUTS)
def test_a_drawing_has_every_branch_and_rank(layout):
    topology = Topology.parse(layout)
    lines = draw(topology).splitlines()
    assert len(lines) == len(topology.branches)
    shown = [span for line in lines for spans_of in re.findall(r"ranks? (.*)", line) for span in spans_of.split()]
    ends = [[int(end) for end in span.split("-")] for span in shown]
    assert [rank for first, *last in ends for rank in range(first, (last or [first])[0] + 1)] == list(topology.ranks)


def test_words():
    assert spans([0, 1, 2, 7, 9, 10]) == "0-2 7 9-10"
    assert [rate(bits / 8) for bits in (1e9, 0.94e9, 2e8, 1e7, 1e5, 10)] == [
        "1 Gbit/s", "0.94 Gbit/s", "0.2 Gbit/s", "10 Mbit/s", "0.1 Mbit/s", "10 bit/s"
    ]  # fmt: skip
    assert speeds([Link(-2e-5, 1.25e8), Link(1.2e-4, 1.2e8, 65536)]) == [
        "1 Gbit/s, -20 us",
        "from 65.5 kB 0.96 Gbit/s, 120 us",
    ]
    assert speeds([]) == []
