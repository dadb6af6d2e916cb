"""A plan as one rank runs it: parts are added in the round's order, buffers are used again."""

import torch

from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.collectives.execution.program import Scratch, program_of
from wirebench.collectives.plan import Collective, Plan, Transfer, check
from wirebench.collectives.ring import Ring
from wirebench.comm.local import LocalHub
from wirebench.comm.metered import Metered
from wirebench.exchange.advance import run
from wirebench.gradient.requests import Sum
from wirebench.topology.tree import Topology


class Given:
    """A collective with one plan."""

    def __init__(self, plan: Plan) -> None:
        self.given = plan

    def plan(self, topology: Topology, items: int) -> Plan:
        return self.given


# Ranks 1 and 2 hand what they hold to each other, so that rank 0 holds nothing valid when they bring it their sums:
# for item 0 rank 2 comes first and is fresh, for item 1 rank 1, though rank 2's message was the first in the round.
CROSSED = Plan(
    "crossed",
    reduce=(
        (Transfer(0, 1, 0, 1), Transfer(0, 2, 1, 2)),
        (Transfer(2, 0, 0, 1, True), Transfer(1, 0, 0, 1), Transfer(1, 0, 1, 2, True), Transfer(2, 0, 1, 2)),
    ),
    copy=((Transfer(0, 1, 0, 2), Transfer(0, 2, 0, 2)),),
)


def serve(collective: Collective, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    size = len(inputs)
    servers = [RequestExecutor(Metered(c), collective, Topology.flat(size)) for c in LocalHub(size).communicators]
    answers = run([server.serve(Sum(tensor)) for server, tensor in zip(servers, inputs, strict=True)])
    return [torch.as_tensor(answer) for answer in answers]


def test_fresh_parts_come_before_what_is_added_to_them_whichever_message_brings_them() -> None:
    check(CROSSED, 3, 2)
    inputs = [torch.tensor([1.0, 2.0]) * 10**rank for rank in range(3)]
    expected = torch.stack(inputs).sum(0)
    assert all(torch.equal(answer, expected) for answer in serve(Given(CROSSED), inputs))


def test_a_pairs_touching_transfers_travel_as_one_message() -> None:
    (_, second, _) = program_of(CROSSED, 0).rounds
    assert [(span.peer, span.start, span.stop) for span in second.receives] == [(2, 0, 2), (1, 0, 2)]
    assert [(a.start, a.stop, a.offset, a.fresh) for a in second.incoming] == [
        (0, 1, 0, True), (0, 1, 2, False), (1, 2, 3, True), (1, 2, 1, False),
    ]  # fmt: skip
    assert program_of(CROSSED, 0).scratch_items == 4


def test_receives_are_posted_a_round_ahead_where_nothing_is_disturbed() -> None:
    ring = Ring().plan(Topology.flat(3), 3)
    program = program_of(ring, 0)
    assert [each.early for each in program.rounds] == [False, True, True, True]
    # One item a round, in two places by turns, so that one can come while the other is added.
    assert [each.into for each in program.rounds] == [0, 1, None, None]
    assert program.scratch_items == 2

    added = Plan("added", ((Transfer(1, 0, 0, 2),),), ((Transfer(1, 0, 1, 3),),))
    assert not program_of(added, 0).rounds[1].early, "what comes would be added to"
    passed_on = Plan("passed on", (), ((Transfer(0, 1, 0, 2), Transfer(1, 0, 3, 4)), (Transfer(1, 0, 1, 3),)))
    assert not program_of(passed_on, 0).rounds[1].early, "what comes would be passed on"
    other = Plan("other", (), ((Transfer(1, 0, 0, 2),), (Transfer(2, 0, 2, 3),)))
    assert not program_of(other, 0).rounds[1].early, "what comes would take a share of the link"
    twice = Plan("twice", (), ((Transfer(1, 0, 0, 2),), (Transfer(1, 0, 1, 3),)))
    assert not program_of(twice, 0).rounds[1].early, "what comes first would overwrite what comes later"
    back = Plan("back", ((Transfer(0, 1, 0, 2), Transfer(1, 0, 2, 4)),), ((Transfer(1, 0, 0, 2),),))
    assert program_of(back, 0).rounds[1].early, "the sum comes after the summand has left"


def test_buffers_are_used_again_by_type_and_grow() -> None:
    scratch, like = Scratch(), torch.zeros(1)
    first = scratch.take(10, like)
    other = scratch.take(10, like)
    assert first.data_ptr() != other.data_ptr()
    scratch.give_back(first)
    assert scratch.take(7, like).data_ptr() == first.data_ptr()
    scratch.give_back(first)
    assert scratch.take(11, like).numel() >= 11
    assert scratch.take(3, torch.zeros(1, dtype=torch.float16)).dtype == torch.float16
