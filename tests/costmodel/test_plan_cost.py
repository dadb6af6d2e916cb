"""Priced plans: they cost what the papers' formulas say wherever those apply, and their bytes add up."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.flexreduce.measured import ideal_saving
from tests.costmodel import closed_forms
from tests.helpers import examples
from wirebench import collectives
from wirebench.collectives.plan import Plan, Transfer
from wirebench.costmodel.plan_cost import MachineBytes, pipelined_seconds, plan_seconds, uplink_bytes
from wirebench.topology.processor import Processor
from wirebench.topology.tree import Branch, Link, Topology

ALPHA, BETA, GAMMA = 45e-6, 8e-9, 0.25e-9
LOCAL, NETWORK = Link(5e-6, 1e10), Link(120e-6, 1.25e8)
ITEM_BYTES = 4.0
NESTED = [(2, 2), (2, 3), (3, 3), (3, 4), (4, 4), (3, 3, 3), (3, 3, 4), (3, 4, 4), (4, 4, 4)]


def flat(size, gamma=GAMMA, link=None):
    topology = Topology.flat(size, link or Link(ALPHA, 1 / BETA))
    return Topology(topology.root, reduce_seconds_per_byte=gamma)


def two_levels(machines, local=LOCAL, network=NETWORK):
    return Topology.parse("+".join(map(str, machines)), [local, network])


def planned(name: str, topology: Topology, items: int) -> Plan:
    plan = collectives.build(name).plan(topology, items)
    assert plan is not None
    return plan


def price(name, topology, items, item_bytes=ITEM_BYTES):
    return plan_seconds(planned(name, topology, items), topology, item_bytes)


def close(expected):
    return pytest.approx(expected, rel=1e-9)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("size", range(1, 65))
@pytest.mark.parametrize("name", ["ring", "tree", "star", "recursive_doubling", "halving_doubling"])
def test_one_switch_prices_as_the_closed_forms(name, size):
    form = closed_forms.binary_tree if name == "tree" else getattr(closed_forms, name)
    items = 64 * size
    expected = form(size, ALPHA, BETA, GAMMA).seconds(items * ITEM_BYTES)
    assert price(name, flat(size), items) == close(expected)


@pytest.mark.parametrize("machines", [(4,), (1, 1), (2, 2), (2, 3), (4, 4, 4), (1, 5, 3), (8, 8)])
def test_hierarchical_prices_as_its_closed_form(machines):
    topology = two_levels(machines) if len(machines) > 1 else Topology.flat(machines[0], LOCAL)
    topology = Topology(topology.root, reduce_seconds_per_byte=GAMMA)
    local, network = ((link.latency_seconds, 1 / link.bytes_per_second) for link in (LOCAL, NETWORK))
    expected = closed_forms.hierarchical(machines, local, network, GAMMA).seconds(960 * ITEM_BYTES)
    assert price("hierarchical", topology, 960) == close(expected)


@pytest.mark.parametrize("name", ["blueconnect", "flexreduce"])
@examples(60)
@given(
    levels=st.lists(st.tuples(st.integers(1, 4), st.floats(1e-3, 1e3)), min_size=1, max_size=3),
    alpha=st.floats(0, 10),
)
def test_symmetric_trees_price_as_equation_3(name, levels, alpha):
    deltas, omegas = zip(*levels, strict=True)
    ranks = iter(range(math.prod(deltas)))

    def grow(level):
        links = (Link(alpha, omegas[level]),)
        children = (grow(level - 1) if level else next(ranks) for _ in range(deltas[level]))
        return Branch(tuple(children), links)

    topology = Topology(grow(len(levels) - 1))
    items = 5 * math.prod(deltas)
    assert price(name, topology, items) == close(
        closed_forms.blueconnect_seconds(items * ITEM_BYTES, deltas, omegas, alpha)
    )
    assert price(name, topology, items) == close(closed_forms.flexreduce_seconds(items * ITEM_BYTES, topology, alpha))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("machines", NESTED, ids=str)
@pytest.mark.parametrize("local_rate", [1e12, 3e8, 1.25e8])
def test_flexreduce_prices_as_equation_6(machines, local_rate):
    """The nine configurations of the paper: ranges are nested, and only the start-ups of extra calls come on top."""
    items = math.lcm(*range(1, 5)) * 12
    bare = two_levels(machines, Link(0.0, local_rate), Link(0.0, 1.25e8))
    assert price("flexreduce", bare, items) == close(closed_forms.flexreduce_seconds(items * ITEM_BYTES, bare, 0.0))
    started = two_levels(machines, Link(ALPHA, local_rate), Link(ALPHA, 1.25e8))
    formula = closed_forms.flexreduce_seconds(items * ITEM_BYTES, started, ALPHA)
    if len(set(machines)) == 1:
        assert price("flexreduce", started, items) == close(formula)
    else:
        assert price("flexreduce", started, items) > formula


def test_the_papers_example():
    """FlexReduce on 2+3 learners, n = 12: 12.16 where starting costs nothing; a ring takes 19.2 and 23.2."""
    free = two_levels((2, 3), Link(0.0, 100.0), Link(0.0, 1.0))
    assert price("flexreduce", free, 12, 1) == close(12.16)
    # A chunk is 12/5 items, so 5 items stand for the 12.
    assert price("ring", free, 5, 12 / 5) == close(19.2)
    started = two_levels((2, 3), Link(0.5, 100.0), Link(0.5, 1.0))
    assert price("ring", started, 5, 12 / 5) == close(23.2)


@pytest.mark.parametrize("machines", NESTED, ids=str)
def test_the_saving_nears_the_ideal(machines):
    size = sum(machines)
    items, topology = 12 * math.lcm(12, size), two_levels(machines, Link(0.0, 1e15), Link(0.0, 1e8))
    saving = 1 - price("flexreduce", topology, items) / price("ring", topology, items)
    assert saving == pytest.approx(ideal_saving("+".join(map(str, machines))), abs=1e-6)


def test_a_round_by_hand():
    """Two messages leave rank 0 and one crosses the switch: start-ups add up at the port, bytes at the link.

    Two ranks receive, and each is woken.
    """
    topology = Topology(two_levels((2, 2)).root, reduce_seconds_per_byte=1e-6, round_seconds=3.0)
    sends = (Transfer(0, 1, 0, 10), Transfer(0, 2, 10, 30), Transfer(3, 1, 0, 15, fresh=True))
    latency = LOCAL.latency_seconds + NETWORK.latency_seconds
    wire = 20 * ITEM_BYTES / NETWORK.bytes_per_second
    adding = 20 * ITEM_BYTES * 1e-6
    assert plan_seconds(Plan("hand", (sends,), ()), topology, ITEM_BYTES) == close(latency + wire + adding + 6.0)
    assert plan_seconds(Plan("hand", (), (sends,)), topology, ITEM_BYTES) == close(latency + wire + 6.0)
    shared = replace(topology, shared=(Link(0.5, 100.0), Link(0.25, 200.0, from_bytes=60)))
    each = (0.5 + 40 / 100) + (0.25 + 80 / 200) + (0.25 + 60 / 200)
    assert plan_seconds(Plan("hand", (), (sends,)), shared, ITEM_BYTES) == close(latency + wire + 6.0 + each)


def test_a_round_keeps_processors_busy():
    """A rank works at its end of every message; shared cores do all ranks' work, and the adding with it.

    They do it while the busiest rank sends and works: only what takes longer than that is waited for.
    """
    work = Processor(message_seconds=2.0, seconds_per_byte=0.1)
    sends = (Transfer(0, 1, 0, 10), Transfer(0, 2, 10, 30), Transfer(3, 1, 0, 15, fresh=True))
    ends = {0: 4.0 + 0.1 * 30, 1: 4.0 + 0.1 * 25, 2: 2.0 + 0.1 * 20, 3: 2.0 + 0.1 * 15}
    topology = Topology(two_levels((2, 2)).root, reduce_seconds_per_byte=1e-3)

    def more(processor, adds):
        plan = Plan("hand", (sends,), ()) if adds else Plan("hand", (), (sends,))
        return plan_seconds(plan, replace(topology, processor=processor), 1) - plan_seconds(plan, topology, 1)

    assert more(work, adds=True) == close(ends[0]), "the busiest rank"
    one, many = replace(work, cores=1.0), replace(work, cores=64.0)
    wire = plan_seconds(Plan("hand", (), (sends,)), topology, 1) - (LOCAL.latency_seconds + NETWORK.latency_seconds)
    crowded = sum(ends.values()) - 6 * 2.0 * (1 - 4**-0.15)
    assert more(one, adds=False) == close(crowded - wire), "four ranks on a core: their six ends cost less each"
    assert more(one, adds=True) == close(crowded + 30e-3 - wire - 20e-3), "what was the busiest's adding"
    assert more(many, adds=False) == close(ends[0]), "a rank has no use for a second core"


def test_an_idle_link_has_a_head_start():
    """A second of sending at once, which the link gains back while it is idle."""

    def seconds(*lengths):
        topology = flat(2, gamma=0.0)
        fast = replace(topology.root.links[0], head_start_seconds=1.0, latency_seconds=0.25, bytes_per_second=10.0)
        rounds = tuple((Transfer(0, 1, 0, length),) for length in lengths)
        return plan_seconds(Plan("p", (), rounds), replace(topology, root=replace(topology.root, links=(fast,))), 1)

    assert seconds(5) == close(0.25), "half a second of sending, of which nothing is waited for"
    assert seconds(50) == close(0.25 + 5 - 0.25), "all but what the request before it left"


def test_parts_of_one_message_start_once():
    topology = flat(3, gamma=0.0)
    together = (Transfer(0, 1, 0, 4), Transfer(0, 1, 4, 8))
    apart = (Transfer(0, 1, 0, 4), Transfer(0, 1, 6, 10))
    assert plan_seconds(Plan("p", (together,), ()), topology, 1) == close(ALPHA + 8 * BETA)
    assert plan_seconds(Plan("p", (apart,), ()), topology, 1) == close(2 * ALPHA + 8 * BETA)


def test_a_link_sums_what_crosses_it():
    topology = two_levels((2, 2))
    crossing = (Transfer(0, 2, 0, 10), Transfer(1, 3, 0, 10))
    opposed = (Transfer(0, 2, 0, 10), Transfer(3, 1, 0, 10))
    seconds = [plan_seconds(Plan("p", (transfers,), ()), topology, 1) for transfers in (crossing, opposed)]
    assert seconds[0] == close(NETWORK.latency_seconds + 20 / NETWORK.bytes_per_second)
    assert seconds[1] == close(NETWORK.latency_seconds + 10 / NETWORK.bytes_per_second)


def test_a_message_takes_one_lane():
    def seconds(lanes, messages):
        topology = Topology(
            Branch((Branch((0, 1), (LOCAL,)), Branch((2, 3), (LOCAL,))), (Link(0.0, 1e3, lanes=lanes),))
        )
        sends = tuple(Transfer(each, each + 2, 0, 5000) for each in range(messages))
        return plan_seconds(Plan("p", (sends,), ()), topology, 1)

    assert seconds(2, 1) == seconds(1, 1) == close(5)
    assert (seconds(1, 2), seconds(2, 2), seconds(4, 2)) == (close(10), close(5), close(5))


def test_the_size_of_a_message_chooses_the_speed():
    links = (Link(1e-6, 1e6), Link(1e-3, 1e9, from_bytes=1000))
    topology = Topology(Branch((0, 1), links))

    def seconds(items):
        return plan_seconds(Plan("p", ((Transfer(0, 1, 0, items),),), ()), topology, 1)

    assert seconds(999) == close(1e-6 + 999e-6)
    assert seconds(1000) == close(1e-3 + 1e-6)


def test_the_largest_message_chooses_a_links_rate():
    links = (Link(1e-6, 1e6), Link(1e-3, 1e9, from_bytes=1000))
    topology = Topology(Branch((0, 1, 2), links))
    sends = (Transfer(0, 1, 0, 2000), Transfer(0, 2, 0, 500), Transfer(1, 2, 0, 2000))
    assert plan_seconds(Plan("p", (sends,), ()), topology, 1) == close(1e-3 + 1e-6 + 2500 / 1e9)


@pytest.mark.parametrize("name", [n for n in collectives.available() if n != "native"])
def test_one_rank_and_no_items_cost_nothing(name):
    assert price(name, Topology(flat(1).root, round_seconds=1.0), 100) == 0.0
    assert price(name, Topology(flat(5).root, round_seconds=1.0), 0) == 0.0
    assert pipelined_seconds([], flat(5), 4) == 0.0


def test_empty_rounds_are_free():
    topology = Topology(flat(2).root, round_seconds=1.0)
    plan = Plan("p", ((), (Transfer(0, 1, 0, 1),), ()), ((),))
    assert plan_seconds(plan, topology, 1) == close(1.0 + ALPHA + BETA)


@pytest.mark.parametrize("name", ["ring", "flexreduce"])
def test_unknown_speeds_have_no_price(name):
    topology = Topology.parse("2+3")
    with pytest.raises(ValueError, match="no link speeds"):
        price(name, topology, 30)
    plan = planned(name, topology, 30)
    assert closed_forms.link_bytes(plan, topology, 4) and uplink_bytes(plan, topology, 4)


def test_bytes_of_the_papers_example():
    """Level 0 moves 6 items on each leaf link of the machine of two and 8 on the others; level 1 adds 3 and 2."""
    topology = Topology.parse("2+3")
    carried = closed_forms.link_bytes(planned("flexreduce", topology, 12), topology, 1)
    # In the copy half every arrow is reversed, so both directions carry what went in and what went out.
    expected: dict[int | tuple[int, ...], int] = {0: 18, 1: 18, 2: 20, 3: 20, 4: 20, (0,): 12, (1,): 12}
    assert carried == {(node, way): count for node, count in expected.items() for way in ("up", "down")}


@examples(50)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.sampled_from(["ring", "flexreduce", "hierarchical"]))
def test_interfaces_carry_what_the_links_do(machines, name):
    topology = Topology.parse("+".join(map(str, machines)))
    items = math.lcm(*machines) * len(machines) * sum(machines)
    plan = planned(name, topology, items)
    carried = closed_forms.link_bytes(plan, topology, 4)
    machine_links = [MachineBytes(carried[(m,), "up"], carried[(m,), "down"]) for m in range(len(machines))]
    assert list(uplink_bytes(plan, topology, 4)) == machine_links
    share = Fraction(len(machines) - 1, len(machines)) if name != "ring" else Fraction(sum(machines) - 1, sum(machines))
    assert [b.sent + b.received for b in machine_links] == [4 * share * items * 4] * len(machines)


def test_machines_need_not_be_contiguous():
    topology = Topology.of_hosts(["a", "b", "a", "b"])
    plan = Plan("p", ((Transfer(0, 2, 0, 7), Transfer(0, 3, 0, 5)),), ())
    assert uplink_bytes(plan, topology, 2) == ((10, 0), (0, 10))
    assert closed_forms.link_bytes(plan, topology, 2) == {
        (0, "up"): 24, (2, "down"): 14, ((0,), "up"): 10, ((1,), "down"): 10, (3, "down"): 10
    }  # fmt: skip
