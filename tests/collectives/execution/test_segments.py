"""Segments: the cut covers everything, and as many are under way at once as it says."""

import functools
from collections.abc import Generator
from itertools import pairwise

import pytest

from wirebench.collectives import build
from wirebench.collectives.execution import segments
from wirebench.collectives.execution.segments import (
    IN_FLIGHT,
    IN_TURN,
    LEAST_MESSAGE_BYTES,
    LEAST_SEGMENT_BYTES,
    SEGMENT_BYTES,
    cut,
    in_flight,
)
from wirebench.collectives.plan import check
from wirebench.topology.tree import Topology


@pytest.mark.sampled(20)
@pytest.mark.parametrize("items", [0, 1, 7, 1_000_000, 3_300_001, 14_700_000])
@pytest.mark.parametrize("shares", [1, 2, 5, 12, 40])
@pytest.mark.parametrize("item_bytes", [2, 4, 8])
@pytest.mark.parametrize("in_turn", [False, True])
def test_segments_cover_a_sum_in_order(items: int, shares: int, item_bytes: int, in_turn: bool) -> None:
    parts = cut(items, item_bytes, shares, in_turn)
    assert parts[0][0] == 0
    assert parts[-1][1] == items
    assert all(before[1] == after[0] for before, after in pairwise(parts))
    lengths = [stop - start for start, stop in parts]
    assert max(lengths) - min(lengths) <= 1
    if len(parts) > 1:
        shorter = (4 if shares == 1 else 2) if in_turn else 1
        least = max(LEAST_SEGMENT_BYTES, shares * LEAST_MESSAGE_BYTES) / shorter
        assert min(lengths) * item_bytes >= least - item_bytes


def test_a_small_sum_is_one_segment_and_a_large_one_is_not() -> None:
    assert cut(1000, 4, 4) == [(0, 1000)]
    assert len(cut(14_700_000, 4, 4)) == 14_700_000 * 4 // SEGMENT_BYTES
    assert len(cut(2_000_000, 4, 4)) == IN_FLIGHT
    assert len(cut(4_000_000, 4, 4, in_turn=True)) == IN_TURN
    assert len(cut(4_000_000, 4, 1, in_turn=True)) == 2 * IN_TURN
    assert len(cut(14_700_000, 4, 4, in_turn=True)) == 14_700_000 * 4 // SEGMENT_BYTES


@pytest.mark.parametrize(
    ("layout", "name", "apart"),
    [
        ("2+3", "flexreduce", 2),
        ("(2+2)+(2+3)", "flexreduce", 4),
        ("1+1+1+1", "flexreduce", 0),
        ("5", "flexreduce", 0),
        ("2+3", "ring", 0),
        ("4+4", "blueconnect", 2),
        ("3+3+3", "blueconnect", 4),
        ("2+2", "hierarchical", 2),
        ("2+2", "recursive_doubling", 1),
        ("2+3", "tree", 2),
        ("4+4", "tree", 1),
        ("1+1+1+1", "tree", 1),
        ("1+1+1+1", "star", 1),
        ("1+1+1+1", "halving_doubling", 0),
        ("2+3", "native", 0),
    ],
)
def test_segments_start_in_turn_where_rounds_leave_links_idle(layout: str, name: str, apart: int) -> None:
    topology, items = Topology.parse(layout), 6_000_000
    found = segments.segments(functools.partial(build(name).plan, topology), topology, items, 4)
    assert found.apart == apart
    assert (found.parts[0].start, found.parts[-1].stop) == (0, items)
    assert len(found.plans) == (0 if name == "native" else len(found.parts))
    if apart:
        check(found.plans[0], topology.size, found.parts[0].stop)
        # In step, as they advance: in every one, some segment under way has a round between machines.
        machine = {rank: number for number, ranks in enumerate(topology.machines) for rank in ranks}
        plan = found.plans[0]
        crossing = {
            number % apart
            for number, transfers in enumerate((*plan.reduce, *plan.copy))
            if any(machine[t.src] != machine[t.dst] for t in transfers)
        }
        assert len(crossing) == apart


@pytest.mark.parametrize(("name", "finer"), [("tree", 2), ("star", 2), ("halving_doubling", 1), ("ring", 1)])
def test_whole_messages_are_cut_finer(name: str, finer: int) -> None:
    topology, items = Topology.parse("1+1+1+1"), 3_000_000
    found = segments.segments(functools.partial(build(name).plan, topology), topology, items, 4)
    assert len(found.parts) == (finer * IN_TURN if found.apart else items * 4 // SEGMENT_BYTES)
    assert (found.apart > 0) == (finer == 2)


def steps(name: str, rounds: int, log: list[str]) -> Generator[str, str, None]:
    for number in range(rounds):
        log.append(f"{name}{number} begins")
        answer = yield f"{name}{number}"
        assert answer == f"answer to {name}{number}"
        log.append(f"{name}{number} ends")


def drive(parts: Generator[str, str, None]) -> list[str]:
    handles: list[str] = []
    answer = None
    while True:
        try:
            handle = parts.send(answer)  # type: ignore[arg-type]
        except StopIteration:
            return handles
        handles.append(handle)
        answer = f"answer to {handle}"


def test_a_segment_starts_where_one_has_ended(monkeypatch) -> None:
    monkeypatch.setattr(segments, "IN_FLIGHT", 2)
    log: list[str] = []
    handles = drive(in_flight(steps(name, 3, log) for name in "abc"))
    assert handles == ["a0", "b0", "a1", "b1", "a2", "b2", "c0", "c1", "c2"]
    # A round is under way while another one is waited for.
    assert log.index("b0 begins") < log.index("a0 ends")


def test_segments_in_turn_are_so_many_rounds_apart() -> None:
    log: list[str] = []
    handles = drive(in_flight((steps(name, 4, log) for name in "abc"), apart=2))
    assert handles == ["a0", "a1", "b0", "a2", "b1", "a3", "c0", "b2", "c1", "b3", "c2", "c3"]
    # A new one begins when the one before has done two rounds, and before it goes on.
    assert log.index("b0 begins") < log.index("a1 ends") < log.index("a2 begins") < log.index("a2 ends")


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_segment_that_ends_early_lets_the_next_start(rounds: int) -> None:
    handles = drive(in_flight((steps(name, rounds, []) for name in "abc"), apart=2))
    assert handles == [f"{name}{number}" for name in "abc" for number in range(rounds)]


@pytest.mark.parametrize("rounds", [1, 2, 3, 4, 8, 22])
def test_no_more_are_under_way_than_allowed_and_each_is_driven_to_its_end(rounds: int) -> None:
    log: list[str] = []
    names = [chr(ord("a") + number) for number in range(10)]
    drive(in_flight(steps(name, rounds, log) for name in names))
    open_now, most = 0, 0
    for line in log:
        open_now += 1 if line.endswith("begins") else -1
        most = max(most, open_now)
    assert most == IN_FLIGHT
    assert open_now == 0
    assert len(log) == 2 * rounds * len(names)


def test_segments_without_rounds_and_no_segments_at_all() -> None:
    log: list[str] = []
    assert drive(in_flight(steps("x", 0, log) for _ in range(5))) == []
    assert drive(in_flight([steps("a", 0, log), steps("b", 1, log)])) == ["b0"]
    assert drive(in_flight([])) == []
