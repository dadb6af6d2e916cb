"""Every collective on random trees: right, the same on all ranks, one message per pair, fit for gathers."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.collectives.trees import carry_out, topologies
from tests.helpers import examples
from wirebench import collectives
from wirebench.collectives.plan import Plan, check, gather_moves, messages
from wirebench.topology.tree import Topology


def plans(topology: Topology, items: int) -> list[Plan]:
    made = [collectives.build(name).plan(topology, items) for name in collectives.available()]
    return [plan for plan in made if plan is not None]


@examples(500)
@given(topologies, st.integers(0, 64))
def test_every_plan_is_right_on_every_tree(topology: Topology, items: int):
    for plan in plans(topology, items):
        check(plan, topology.size, items)


@examples(100)
@given(topologies, st.integers(1, 64))
def test_all_ranks_hold_the_same_bits(topology: Topology, items: int):
    inputs = np.random.default_rng(items).standard_normal((topology.size, items), np.float32)
    for plan in plans(topology, items):
        held = carry_out(plan, inputs)
        assert (held == held[0]).all(), plan.name
        np.testing.assert_allclose(held[0], inputs.astype(np.float64).sum(0), atol=1e-4)


@examples(100)
@given(topologies, st.integers(0, 64))
def test_a_pair_shares_at_most_one_message_per_round(topology: Topology, items: int):
    for plan in plans(topology, items):
        for transfers in (*plan.reduce, *plan.copy):
            pairs = [(message.src, message.dst) for message in messages(transfers)]
            assert len(pairs) == len(set(pairs)), plan.name


@examples(100)
@given(topologies)
def test_every_plan_gathers_on_every_tree(topology: Topology):
    for plan in plans(topology, topology.size):
        for owners in ((), topology.ranks):
            has = [{rank} for rank in range(topology.size)]
            for moves in gather_moves(plan, topology.size, owners):
                before = [set(h) for h in has]
                assert len({(m.src, m.dst) for m in moves}) == len(moves), "a pair shares one message"
                for move in moves:
                    assert set(move.origins) <= before[move.src], "a rank passes on what it does not have yet"
                    assert not set(move.origins) & has[move.dst], "a contribution arrives twice"
                    assert len(set(move.origins)) == len(move.origins), "a contribution arrives twice"
                    has[move.dst] |= set(move.origins)
            assert has == [set(range(topology.size))] * topology.size
