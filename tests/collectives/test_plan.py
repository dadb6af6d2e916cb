"""Plans: what `check` proves, that it sees every kind of broken plan, and the all-gather inside a plan."""

from collections.abc import Sequence

import pytest

from tests import own
from tests.collectives.trees import check_gathering
from wirebench import collectives
from wirebench.collectives.plan import (
    Message,
    Move,
    Plan,
    Round,
    Transfer,
    check,
    gather_moves,
    messages,
    mirror,
    rounds_of,
)
from wirebench.topology.tree import Topology

OURS = [name for name in collectives.available() if collectives.build(name).plan(Topology.flat(2), 2) is not None]
PLANNED = own.names("collective", OURS)


def plan_of(name: str, size: int, items: int) -> Plan:
    options = own.options("collective") if name not in OURS else {}
    plan = collectives.build(name, **options).plan(Topology.flat(size), items)
    assert plan is not None
    return plan


def without(plan: Plan, half: str, number: int, place: int) -> Plan:
    """The plan with one transfer dropped."""
    return edited(plan, half, number, lambda r: (*r[:place], *r[place + 1 :]))


def edited(plan: Plan, half: str, number: int, edit) -> Plan:
    rounds: Sequence[Round] = getattr(plan, half)
    changed = (*rounds[:number], edit(rounds[number]), *rounds[number + 1 :])
    return Plan(plan.name, changed, plan.copy) if half == "reduce" else Plan(plan.name, plan.reduce, changed)


def test_there_are_plans_to_prove():
    assert set(OURS) >= {"ring", "tree", "star", "recursive_doubling", "halving_doubling", "hierarchical"}
    assert set(OURS) >= {"blueconnect", "flexreduce"}
    assert "native" not in OURS


@pytest.mark.sampled(3)
@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["", "all"])
@pytest.mark.parametrize("name", PLANNED)
def test_every_plan_is_right_for_every_world(name, few):
    for size in range(1, 33):
        # Around these numbers chunks get empty; all of them take long.
        for items in sorted({0, 1, 2, 3, size - 1, size, size + 1, 31, 64}) if few else range(65):
            check(plan_of(name, size, items), size, items)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_every_dropped_transfer_is_noticed(name, size):
    items = 2 * size
    plan = plan_of(name, size, items)
    for half in ("reduce", "copy"):
        for number, transfers in enumerate(getattr(plan, half)):
            for place in range(len(transfers)):
                with pytest.raises(ValueError, match="ends with item"):
                    check(without(plan, half, number, place), size, items)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
def test_every_repeated_contribution_is_noticed(name, size):
    items = 2 * size
    plan = plan_of(name, size, items)
    for number, transfers in enumerate(plan.reduce):
        for transfer in transfers:
            with pytest.raises(ValueError, match="ends with item"):
                check(edited(plan, "reduce", number, lambda r, t=transfer: (*r, t)), size, items)


@pytest.mark.parametrize("name", PLANNED)
def test_overwriting_instead_of_adding_is_noticed(name):
    plan = plan_of(name, 4, 8)
    for number, transfers in enumerate(plan.reduce):
        for place, transfer in enumerate(transfers):
            fresh = transfer._replace(fresh=True)
            broken = edited(plan, "reduce", number, lambda r, p=place, f=fresh: (*r[:p], f, *r[p + 1 :]))
            with pytest.raises(ValueError, match="ends with item"):
                check(broken, 4, 8)


def test_fresh_is_what_lets_a_rank_take_back_a_range_that_it_gave_away():
    # Rank 0 gives its item to rank 1, then gets the sum back to finish it: its own stale part must not count again.
    there, back = (Transfer(0, 1, 0, 1),), Transfer(1, 0, 0, 1, fresh=True)
    check(Plan("back", (there, (back,)), ()), 2, 1)
    with pytest.raises(ValueError, match=r"rank 0 ends with item 0 holding contributions \[2, 1\]"):
        check(Plan("stale", (there, (back._replace(fresh=False),)), ()), 2, 1)


def test_transfers_of_a_round_read_what_was_there_before_it():
    # Both ranks send at once: were the round run one by one, rank 0 would get its own contribution back.
    swap = (Transfer(0, 1, 0, 2), Transfer(1, 0, 0, 2))
    check(Plan("swap", (swap,), ()), 2, 2)


@pytest.mark.parametrize(
    ("transfer", "words"),
    [
        (Transfer(0, 2, 0, 1), "not between two of 2 ranks"),
        (Transfer(-1, 0, 0, 1), "not between two of 2 ranks"),
        (Transfer(1, 1, 0, 1), "not between two of 2 ranks"),
        (Transfer(0, 1, 0, 4), "not a part of 3 items"),
        (Transfer(0, 1, -1, 2), "not a part of 3 items"),
        (Transfer(0, 1, 1, 1), "not a part of 3 items"),
    ],
)
def test_transfers_outside_the_world_are_noticed(transfer, words):
    with pytest.raises(ValueError, match=words):
        check(Plan("odd", ((transfer,),), ()), 2, 3)
    with pytest.raises(ValueError, match=f"odd, copy round 0: .*{words}"):
        check(Plan("odd", (), ((transfer,),)), 2, 3)


def test_a_mirror_reverses_rounds_and_arrows_and_overwrites():
    reduce = ((Transfer(1, 0, 0, 2, fresh=True),), (Transfer(2, 0, 1, 2), Transfer(3, 1, 0, 1)))
    assert mirror(reduce) == ((Transfer(0, 2, 1, 2), Transfer(1, 3, 0, 1)), (Transfer(0, 1, 0, 2),))


def test_rounds_of_nothing_are_left_out():
    assert rounds_of([[Transfer(0, 1, 0, 0)], [], [Transfer(0, 1, 0, 1), Transfer(1, 0, 1, 1)]]) == (
        (Transfer(0, 1, 0, 1),),
    )


def test_a_pair_needs_one_message_a_round():
    plan = Plan("split", ((Transfer(0, 1, 0, 1), Transfer(0, 1, 2, 3)),), ())
    with pytest.raises(ValueError, match="split, reduce round 0: 2 messages from rank 0 to 1"):
        check(plan, 2, 3)


def test_what_is_sent_must_not_be_overwritten_in_the_same_round():
    swap = (Transfer(0, 1, 0, 4), Transfer(1, 0, 2, 6))
    with pytest.raises(ValueError, match=r"swap, copy round 0: .* overwrites what"):
        check(Plan("swap", (), (swap,)), 2, 6)


def test_ranges_that_touch_travel_as_one_message():
    first, between, second = Transfer(0, 1, 4, 6), Transfer(2, 1, 0, 9), Transfer(0, 1, 2, 4, fresh=True)
    apart, back = Transfer(0, 1, 7, 8), Transfer(1, 0, 6, 7)
    assert messages((first, between, second, apart, back)) == (
        Message(0, 1, 2, 6, (second, first)),
        Message(0, 1, 7, 8, (apart,)),
        Message(2, 1, 0, 9, (between,)),
        Message(1, 0, 6, 7, (back,)),
    )
    assert messages(()) == ()


def test_ranges_that_overlap_travel_as_one_message():
    long, inside, over = Transfer(0, 1, 0, 6), Transfer(0, 1, 2, 4), Transfer(0, 1, 5, 8)
    assert messages((over, inside, long)) == (Message(0, 1, 0, 8, (long, inside, over)),)


def test_items_sent_are_counted_over_both_halves():
    plan = Plan("odd", ((Transfer(1, 0, 0, 3),),), ((Transfer(0, 1, 0, 2), Transfer(0, 1, 2, 3)),))
    assert [plan.sent_items(rank) for rank in (0, 1)] == [3, 3]
    assert plan.rounds == 2


@pytest.mark.sampled(20)
@pytest.mark.parametrize("name", PLANNED)
@pytest.mark.parametrize("size", range(1, 18))
def test_gathering_along_a_plan_brings_every_contribution_to_every_rank_once(name, size):
    check_gathering(gather_moves(plan_of(name, size, size), size), size)


def test_gathering_in_leaf_order_is_the_ring_all_gather_wherever_the_ranks_are():
    topology = Topology.of_hosts(["a", "b", "a", "b", "a"])
    plan = collectives.build("ring").plan(topology, 5)
    assert plan is not None
    rounds = gather_moves(plan, 5, topology.ranks)
    assert len(rounds) == 4, "the reduce half moves nothing"
    assert all(len(move.origins) == 1 for moves in rounds for move in moves)
    assert len(gather_moves(plan, 5)) > 4, "items owned in another order travel twice"


def test_gathering_sends_a_pair_one_move_per_round():
    first, back = (Transfer(2, 0, 2, 3),), (Transfer(1, 0, 1, 2), Transfer(1, 2, 0, 2))
    parts = (Transfer(0, 1, 0, 1), Transfer(0, 1, 2, 3))
    assert gather_moves(Plan("parts", (first, parts), (back,)), 3) == (
        (Move(2, 0, (2,)),),
        (Move(0, 1, (0, 2)),),
        (Move(1, 0, (1,)), Move(1, 2, (0, 1))),
    )


def test_gathering_takes_what_two_ranks_offer_from_the_first():
    give, offer = (Transfer(0, 1, 0, 1),), (Transfer(0, 2, 0, 1), Transfer(1, 2, 0, 2))
    back = (Transfer(2, 0, 1, 3), Transfer(2, 1, 2, 3))
    assert gather_moves(Plan("offers", (give, offer), (back,)), 3) == (
        (Move(0, 1, (0,)),),
        (Move(0, 2, (0,)), Move(1, 2, (1,))),
        (Move(2, 0, (1, 2)), Move(2, 1, (2,))),
    )


def test_gathering_on_a_tree_collects_at_the_root_first():
    assert gather_moves(plan_of("tree", 4, 4), 4) == (
        (Move(1, 0, (1,)), Move(3, 2, (3,))),
        (Move(2, 0, (2, 3)),),
        (Move(0, 2, (0, 1)),),
        (Move(0, 1, (0, 2, 3)), Move(2, 3, (0, 1, 2))),
    )


def test_a_plan_that_gathers_too_little_is_noticed():
    with pytest.raises(AssertionError, match="not every contribution reaches every rank"):
        gather_moves(Plan("half", ((Transfer(1, 0, 0, 2),),), ()), 2)


def test_gathering_reads_what_was_there_before_the_round():
    everything = [Transfer(src, dst, 0, 3) for src, dst in ((1, 0), (0, 2), (2, 0), (0, 1))]
    chain, up, down = (everything[0], everything[1]), (everything[2],), (everything[3], everything[1])
    assert gather_moves(Plan("chain", (chain,), (up, down)), 3) == (
        (Move(1, 0, (1,)), Move(0, 2, (0,))),
        (Move(2, 0, (2,)),),
        (Move(0, 1, (0, 2)), Move(0, 2, (1,))),
    )
