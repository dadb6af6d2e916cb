"""What an elastic run says of what is lost: commits that cannot be written, restarts without one, memory of ranks."""

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.exchange.lanes import LAYERS, lanes_of
from tests.helpers import whole
from wirebench import compressors
from wirebench.comm.peers import Peer
from wirebench.exchange.easgd import Elastic
from wirebench.training import failures
from wirebench.training.elastic import changes, commits, host_memory
from wirebench.training.elastic.commits import Commits
from wirebench.training.elastic.host_memory import Commit, HostMemory
from wirebench.training.state_files import MODEL, STATE

HOLDING = ("dgc", "demo", "lion_sign", "topk")

FILES = [MODEL, "rank-0000.safetensors", STATE]


class Filled(HostMemory):
    """A host's memory that has no room for a model while it is `full`."""

    full = False

    def write(self, commit: Commit, name: str, content: Mapping[str, Any] | bytes) -> None:
        """As HostMemory's."""
        if self.full and name == MODEL:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(commit, name, content)


class State:
    """One rank's, with nothing to learn."""

    def __init__(self) -> None:
        self.step, self.steps_per_epoch, self.worlds = 0, 5, list[dict[str, Any]]()
        self.compressors = [compressors.build("topk")]

    def state_dict(self) -> dict[str, Any]:
        """As TrainState's."""
        rank = SimpleNamespace(states=[{"residual": torch.ones(3)}])
        return {"model": {"weight": torch.ones(3)}, "ranks": [rank], "progress": {"worlds": self.worlds}}


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Commits, Filled, list[str]]:
    """The commits of a job's only rank, its host's memory, and what a person is told."""
    monkeypatch.setattr(commits, "gather_bytes", lambda communicator, content: [content])
    monkeypatch.setattr(commits, "bring", lambda engine, source, read: read())
    sent = SimpleNamespace(broadcast=lambda tensors: SimpleNamespace(wait=lambda: None))
    engine: Any = SimpleNamespace(communicators=[sent], ranks=[0], peers=[Peer(0, "a", 1)], size=1, is_first=True)
    told: list[str] = []
    nobody: Any = None
    state: Any = State()
    memory = Filled("job", tmp_path, "a")
    return Commits(engine, state, memory, 10, False, told.append, nobody, nobody, "j", "w"), memory, told


def test_a_commit_that_cannot_be_written_is_none_and_the_next_one_is_tried(
    alone: tuple[Commits, Filled, list[str]],
) -> None:
    kept, memory, told = alone
    trainer: Any = SimpleNamespace(commits=kept)
    for step, full, newest in ((10, False, 10), (20, True, 10), (30, True, 10), (40, False, 40), (50, False, 50)):
        kept.state.step, memory.full = step, full
        kept.save()
        assert failures._advice(trainer) == f"the ranks that the launcher starts anew go on after step {newest}"
        assert kept.newest == newest
    assert [(each["step"], each["files"]) for each in memory.inventory()] == [
        (40, FILES), (50, FILES),
    ]  # fmt: skip
    [warned] = told
    assert warned.startswith("warning: rank 0: no commit after step 20: ")
    assert warned.endswith(" cannot be written: No space left on device; the next commit tries again")


def _refuse(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From now on the host's memory can be read and not be written, with this error."""

    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    for module, name in (
        (host_memory, "write_atomically"),
        (host_memory, "write_file"),
        (Path, "mkdir"),
        (Path, "unlink"),
    ):
        monkeypatch.setattr(module, name, refused)


def _lose(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder of all memory is a file now."""
    shutil.rmtree(tmp_path)
    tmp_path.write_text("")


@pytest.mark.parametrize(
    ("trouble", "number"),
    [
        (_refuse, errno.ENOSPC),
        (_refuse, errno.EROFS),
        (_lose, errno.ENOTDIR),
    ],
    ids=["full", "read-only", "missing"],
)
@pytest.mark.parametrize("began", [False, True], ids=["from-the-start", "later"])
def test_a_host_without_memory_costs_commits_and_never_the_job(
    trouble: Callable[[int, pytest.MonkeyPatch, Path], None],
    number: int,
    began: bool,
    alone: tuple[Commits, Filled, list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept, memory, told = alone
    checkpoints: Any = SimpleNamespace(load=lambda chosen, *_: loaded.append(chosen))
    loaded: list[Any] = []
    if began:
        assert not kept.recover(checkpoints)
        kept.state.step = 10
        kept.save()
        kept.settle()
    with monkeypatch.context() as patch:
        trouble(number, patch, tmp_path)
        if not began:
            assert not kept.recover(checkpoints)
            kept.begin_anew(restored=False)
        for kept.state.step in (20, 30):
            kept.save()
        kept.note_trouble()
        assert (kept.newest, memory.take_trouble()) == (10 if began else None, {})
        went_on = kept.recover(checkpoints)
        assert went_on == (began and trouble is _refuse) == bool(loaded)
        kept.begin_anew(restored=False)
        kept.state.step = 40
        kept.save()
        kept.settle()
    [warned, *more] = [line for line in told if "no commit after" in line]
    assert warned.endswith(f"cannot be written: {os.strerror(number)}; the next commit tries again") and not more
    tmp_path.unlink() if tmp_path.is_file() else None
    kept.state.step = 50
    kept.save()
    kept.settle()
    assert kept.recover(checkpoints) and loaded[-1]["folder"] == "memory, step 50"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"at": "x", "step": 1, "size": 1}', b"\xff"])
def test_what_is_half_written_is_none(content: bytes, alone: tuple[Commits, Filled, list[str]]) -> None:
    kept, memory, _ = alone
    for kept.state.step in (10, 20):
        kept.save()
    kept.settle()
    commit = Commit(20, 1, "w")
    (memory.folder / "trouble.json").write_bytes(content)
    assert memory.take_trouble() == {}
    memory.note_trouble({"at": 1.0, "step": 7, "size": 1})
    assert memory.take_trouble() == {"at": 1.0, "step": 7, "size": 1}
    for name in FILES:
        memory.write(commit, name, content)
    assert [(each["step"], each["files"]) for each in memory.inventory()] == [
        (10, FILES), (20, []),
    ]  # fmt: skip


def test_a_restart_without_a_commit_is_a_loss_and_a_first_start_is_none(
    alone: tuple[Commits, Filled, list[str]],
) -> None:
    kept, memory, told = alone
    checkpoints: Any = None
    assert not kept.recover(checkpoints)
    kept.begin_anew(restored=False)
    assert told == [] and kept.state.worlds == []
    memory.note_trouble({"at": 1.0, "step": 7, "size": 1})
    assert not kept.recover(checkpoints)
    kept.begin_anew(restored=False)
    [change] = kept.state.worlds
    assert (change["lost_residual"], change["lost_ranks"], change["steps_lost"], change["step"]) == (1.0, [0], 7, 0)
    assert told == [
        "warning: beginning anew after 0 steps, 1 workers before, 1 now: no host's memory has a whole commit of this "
        "job; lost with all ranks: 100% of all residuals"
    ]
    kept.state.step = 5
    memory.note_trouble({"at": 2.0, "step": 7, "size": 1})
    assert not kept.recover(checkpoints)
    kept.begin_anew(restored=True)
    assert kept.state.worlds[-1]["lost_residual"] == 0 and kept.state.worlds[-1]["steps_lost"] == 2
    assert told[-1].startswith("warning: going on from a checkpoint after 5 steps, ")


@pytest.mark.parametrize(
    ("masses", "lost", "share", "words"),
    [
        ([1.0, 3.0], [1], 0.75, "lost with rank 1: 75% of all residuals"),
        ([1.0, 3.0], [], 0.0, "no residual is lost"),
        ([0.0, 0.0], [1], 0.0, "lost with rank 1: 0% of all residuals"),
        ([1.0, None], [0], None, "lost with rank 0: how much is not measurable"),
    ],
)
def test_the_share_that_is_lost_is_that_of_the_ranks_or_not_measurable(
    masses: list[float | None], lost: list[int], share: float | None, words: str
) -> None:
    about = {"at": 1.0, "masses": masses}
    change = changes.from_memory(Commit(10, 2, "w"), lost, 1, about, [])
    assert change["lost_residual"] == share and changes.in_words(change).endswith(words)


@pytest.mark.parametrize("name", HOLDING)
def test_a_method_measures_what_it_remembers_alone(name: str) -> None:
    method = compressors.build(name)
    assert method.magnitude() == 0.0
    for memory in method.memory.names:
        method.memory.slice(whole(torch.zeros(8)), memory).fill_(-2.0)
    assert method.magnitude() == 16.0 * len(method.memory.names)


def test_easgd_measures_how_far_the_ranks_weights_are_from_the_centre() -> None:
    models, lanes = lanes_of(2, [LAYERS])
    driver = Elastic(lanes, [torch.optim.SGD(model.parameters(), 0.1) for model in models], 0.6, overlaps=False)
    first, second = driver.holders
    assert first.magnitude() == second.magnitude() == 0.0
    with torch.no_grad():
        second.flat.set_weights(
            second.flat.gather_weights() + torch.tensor([0.5] * 4 + [0.0] * (second.flat.grad.numel() - 4))
        )
    with driver.evaluation_view():  # in which commits are made
        masses = [holder.magnitude() for holder in driver.holders]
    assert masses == [0.0, pytest.approx(2.0)]
    assert changes.lost_share(masses, [1]) == 1.0
    driver.close()
