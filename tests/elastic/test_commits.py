"""Which commit a job goes on with, who holds whose part, and what stays in a host's memory."""

from pathlib import Path
from typing import Any

import torch

from wirebench.comm.peers import Peer
from wirebench.training.elastic.commits import choose, first_on_host, mirror_of
from wirebench.training.elastic.host_memory import Commit, HostMemory
from wirebench.training.state_files import MODEL, STATE, rank_file


def held(step: int, size: int, *ranks: int, model: bool = True, worlds: int = 0) -> dict[str, Any]:
    names = [rank_file(rank) for rank in ranks] + [STATE, MODEL] * model
    return {"step": step, "size": size, "world": f"w{worlds}", "files": names, "worlds": worlds if model else -1}


def peers(*hosts: str) -> list[Peer]:
    return [Peer(rank, host, 100 + rank) for rank, host in enumerate(hosts)]


def test_the_newest_commit_of_which_the_least_is_missing_is_chosen() -> None:
    """Rank 2's host had not written commit 20 yet when rank 3's was lost; commit 10 is as complete, and older, no."""
    unwritten = {**held(20, 4, 2, model=False), "world": "w0"}
    hosts = [[held(10, 4, 0, 1), held(20, 4, 0, 1)], [held(10, 4, 2), unwritten]]
    plan = choose(hosts)
    assert plan is not None and plan.commit == Commit(20, 4, "w0") and plan.lost == [3]
    assert plan.sources[MODEL] == 0 and plan.sources[rank_file(2)] == 1
    late = choose([hosts[0], [held(10, 4, 2)]])
    assert late is not None and late.commit == Commit(10, 4, "w0") and late.lost == [3]
    mirrored = choose([[held(20, 4, 0, 1, 3)], [held(20, 4, 2, 1)]])
    assert mirrored is not None and mirrored.lost == []


def test_an_earlier_world_counts_only_where_the_later_one_is_worse() -> None:
    """Steps are counted anew in a larger world: 30 of two workers are 20 of three."""
    begun = [held(23, 3, 0, worlds=1), held(23, 3, 1, worlds=1), held(23, 3, 2, worlds=1)]
    grown = choose([[held(30, 2, 0, 1), begun[0]], [begun[1]], []])
    assert grown is not None and grown.commit == Commit(30, 2, "w0")
    settled = choose([[held(30, 2, 0, 1), begun[0]], [begun[1]], [begun[2]]])
    assert settled is not None and settled.commit == Commit(23, 3, "w1")


def test_two_worlds_that_came_to_the_same_step_have_two_commits() -> None:
    """The files of neither are taken for the other's."""
    one, other = held(20, 2, 0, worlds=1), held(20, 2, 1, worlds=2)
    plan = choose([[one], [other]])
    assert plan is not None and plan.commit == Commit(20, 2, "w2") and plan.lost == [0]


def test_nothing_is_chosen_where_no_model_or_no_rank_is_left() -> None:
    assert choose([[], []]) is None
    assert choose([[held(10, 2, 0, 1, model=False)]]) is None
    assert choose([[held(10, 2)]]) is None


def test_a_mirror_is_on_another_host_where_there_is_one() -> None:
    four = peers("a", "a", "b", "b")
    assert [mirror_of(four, rank) for rank in range(4)] == [2, 2, 0, 0]
    assert [mirror_of(peers("a", "a", "a"), rank) for rank in range(3)] == [1, 2, 0]
    assert [first_on_host(four, rank) for rank in range(4)] == [0, 0, 2, 2]


def test_a_host_holds_two_commits_whole_and_only_its_own(tmp_path: Path) -> None:
    memory, other = (HostMemory("job", tmp_path, host) for host in ("a", "b"))
    for step in (5, 10, 15, 3):  # in a larger world, steps are counted anew
        memory.write(Commit(step, 2, "w"), rank_file(1), {"residual": torch.full((3,), float(step))})
        if step == 10:
            continue  # its first rank was killed before it wrote its part
        about = {"job": "x", "world": {}, "progress": {"worlds": [{}]}, "at": 1.0, "masses": []}
        memory.write(Commit(step, 2, "w"), STATE, about)
        memory.prune()
    found = [(each["step"], each["world"], each["job"], each["worlds"]) for each in memory.inventory()]
    assert found == [(3, "w", "x", 1), (15, "w", "x", 1)]
    assert memory.inventory()[0]["files"] == [rank_file(1), STATE] and other.inventory() == []
    memory.trust("x")
    assert memory.trusted() == {"x"} and not other.trusted()
    memory.note_trouble({"at": 1.0, "step": 4, "size": 2})
    memory.note_trouble({"at": 2.0, "step": 4, "size": 2})
    assert memory.take_trouble() == {"at": 1.0, "step": 4, "size": 2} and memory.take_trouble() == {}
    memory.forget()
    assert list(tmp_path.iterdir()) == []
