"""An elastic run: every few steps the state is committed to the hosts' memory; a run that lost ranks resumes from it.

Launchers that can continue with fewer or more processes (torchrun --nnodes MIN:MAX, Horovod elastic) restart the ranks;
the commits are still in memory (host_memory.py). Every rank writes its own part, the first rank of a host the model.
With mirrors it also holds the part of a rank on another host, so that nothing is lost with a host. After the restart
the ranks exchange lists of their hosts' commits, and resume from the newest commit of which the least is missing.
"""

import functools
import json
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from wirebench.comm.engine import Engine
from wirebench.comm.peers import Peer, gather_bytes
from wirebench.comm.ship import bring
from wirebench.training.checkpoint import Checkpoints
from wirebench.training.elastic import changes
from wirebench.training.elastic.changes import Trouble
from wirebench.training.elastic.host_memory import Commit, HostMemory
from wirebench.training.elastic.launchers import Launcher
from wirebench.training.elastic.warden import Warden
from wirebench.training.state_files import MODEL, STATE, rank_file
from wirebench.training.train_state import TrainState
from wirebench.utils.background import Background
from wirebench.utils.tensor_tree import pack, snapshot


class CommitPlan(NamedTuple):
    """The commit to restore, and for each of its files a rank whose host holds it."""

    commit: Commit
    sources: dict[str, int]

    @property
    def lost(self) -> list[int]:
        """Ranks of the earlier world whose part no host has."""
        return [rank for rank in range(self.commit.size) if rank_file(rank) not in self.sources]


@dataclass
class Commits:
    """The commits of one process of an elastic run.

    every     steps between them
    mirror    each rank's part goes to a rank on another host as well
    note      called, on rank 0, with each line that the user should read
    launcher  the elastic launcher, which starts ranks anew
    warden    ends this process when it stands still
    """

    engine: Engine
    state: TrainState
    memory: HostMemory
    every: int
    mirror: bool
    note: Callable[[str], None]
    launcher: Launcher
    warden: Warden
    job: str = ""
    world: str = ""
    newest: int | None = None
    """The step after which this rank's newest commit was made that is written as a whole."""
    _under_way: int | None = None
    _failed: str = ""
    _warned: set[int] = field(default_factory=set)
    _without: list[Trouble] | None = None
    _writer: Background = field(default_factory=functools.partial(Background, "wirebench-commit"))

    def due(self) -> bool:
        """Whether a commit is due after this many steps."""
        return self.state.step % self.every == 0

    def save(self) -> None:
        """Copy this process's part of the state, for a thread that writes it; every rank calls it."""
        self.settle()
        state, me = self.state.state_dict(), self.engine.ranks[0]
        (mine,) = (each.states[0] for each in state["ranks"])
        parts: dict[str, Any] = {rank_file(me): snapshot(mine)}
        own = {"mass": self.state.compressors[0].magnitude(), "failed": self._failed}
        told = gather_bytes(self.engine.communicators[0], json.dumps(own).encode())
        heard = [json.loads(each) for each in told]
        self._warn([each["failed"] for each in heard])
        if me == first_on_host(self.engine.peers, me):
            about = {
                "job": self.job, "world": self._world(), "progress": snapshot(state["progress"]), "at": time.time(),
                "masses": [each["mass"] for each in heard],
            }  # fmt: skip
            parts |= {MODEL: snapshot(state["model"]), STATE: about}
        if self.mirror:
            parts |= self._mirrored(pack(mine))
        commit = Commit(self.state.step, self.engine.size, self.world)
        self._writer.submit(functools.partial(self._write, commit, parts))
        self._under_way = commit.step

    def recover(self, checkpoints: Checkpoints) -> bool:
        """Resume from the hosts' memory, if ranks of this very job left a commit there; every rank calls it.

        False: there is nothing to resume from. Then call `begin_anew` when the run has its state.
        """
        communicator, me = self.engine.communicators[0], self.engine.ranks[0]
        mine = {"held": self.memory.inventory(), "trusted": sorted(self.memory.trusted()), "new": uuid.uuid4().hex}
        told = [json.loads(each) for each in gather_bytes(communicator, json.dumps(mine).encode())]
        jobs = {job for each in told for job in each["trusted"]}
        self.job, self.world = min(jobs, default=told[0]["new"]), told[0]["new"][:8]
        held = [[one for one in each["held"] if one["job"] in {"", self.job}] for each in told]
        plan = choose(held)
        trouble = self._trouble()
        if plan is None or self.job not in jobs:
            # Jobs are trusted by processes that their launcher starts in place of earlier ones.
            self._without = trouble if self.job in jobs else None
            if me == first_on_host(self.engine.peers, me):
                self.memory.forget()
            self._meet()
            self._trust()
            return False
        self._trust()
        names = [MODEL, *(rank_file(rank) for rank in range(plan.commit.size)), STATE]
        content = [
            bring(self.engine, plan.sources[name], functools.partial(self.memory.read, plan.commit, name))
            if name in plan.sources else None
            for name in names
        ]  # fmt: skip
        chosen = self._chosen(plan, content[-1], trouble) if self.engine.is_first else None
        have = [has_model(each, plan.commit) for each in held]
        model = self.memory.read(plan.commit, MODEL) if have[me] else b""
        checkpoints.load(chosen, content[:-1] if self.engine.is_first else [], model, have)
        return True

    def begin_anew(self, restored: bool) -> None:
        """After a `recover` without a commit: a loss, if ranks of this job ran before; every rank calls it.

        restored  the run resumes from a checkpoint, which has residuals of its own
        """
        if self._without is not None:
            change = changes.from_nothing(self.state.step, self.engine.size, self._without, restored)
            self.state.worlds.append(change)
            self.note(changes.in_words(change, restored))

    def close(self, over: bool) -> None:
        """The process ends; `over`: so does the run, and the memory is given back."""
        self.warden.close()
        self.settle()
        self._meet()
        if over and self.engine.ranks[0] == first_on_host(self.engine.peers, self.engine.ranks[0]):
            self.memory.forget()

    def come_back(self) -> None:
        """Called by a rank that would end: its launcher may restart it in this process, and then this never returns."""
        self.warden.close()
        self.launcher.come_back()

    def note_trouble(self) -> None:
        """After the loss of a rank: note the time and the step, from which the record gets the cost of the failure."""
        self.settle()
        self.memory.note_trouble({"at": time.time(), "step": self.state.step, "size": self.engine.size})

    def _trouble(self) -> list[Trouble]:
        """The hosts' notes of the last failure, by rank."""
        noted = gather_bytes(self.engine.communicators[0], json.dumps(self.memory.take_trouble()).encode())
        return [json.loads(each) for each in noted]

    def _chosen(self, plan: CommitPlan, about: bytes | None, trouble: Sequence[Trouble]) -> dict[str, Any]:
        assert about is not None, "choose() takes no commit without it"
        told = json.loads(about)
        change = changes.from_memory(plan.commit, plan.lost, self.engine.size, told, trouble)
        progress = told["progress"]
        progress["worlds"] = [*progress.get("worlds", []), change]
        self.note(changes.in_words(change))
        return {"progress": progress, "world": told["world"], "folder": f"memory, step {plan.commit.step}"}

    def _mirrored(self, mine: bytes) -> dict[str, bytes]:
        """The parts of the ranks whose mirror this one is."""
        peers, me = self.engine.peers, self.engine.ranks[0]
        sources = [peer.rank for peer in peers if mirror_of(peers, peer.rank) == me]
        sends = [(mirror_of(peers, me), torch.frombuffer(bytearray(mine), dtype=torch.uint8))]
        receives: list[tuple[int, None]] = [(source, None) for source in sources]
        received = self.engine.communicators[0].exchange(sends, receives, torch.uint8, True).wait()
        return {rank_file(rank): part.cpu().numpy().tobytes() for rank, part in zip(sources, received, strict=True)}

    def _trust(self) -> None:
        """Note the job on this host; without room for that now, the first commit does it."""
        with suppress(OSError):
            self.memory.trust(self.job)

    def _write(self, commit: Commit, parts: dict[str, Any]) -> None:
        try:
            self.memory.trust(self.job)
            for name, content in parts.items():
                self.memory.write(commit, name, content)
        except OSError:
            self.memory.take_back(commit, parts)  # it would take the place that the next one needs
            raise
        if MODEL in parts:
            self.memory.prune()

    def settle(self) -> None:
        """The commit that is being written ends. One that cannot be written is none, and the next one is tried."""
        step, self._under_way = self._under_way, None
        try:
            self._writer.wait()
        except OSError as error:
            why = f"{self.memory.folder} cannot be written: {error.strerror}"
            self._failed = f"no commit after step {step}: {why}; the next commit tries again"
        else:
            if step is not None:
                self.newest, self._failed = step, ""

    def _warn(self, failed: Sequence[str]) -> None:
        """Note what a rank has begun to fail with; `failed`: of each rank, "" where its last commit is written."""
        for rank, why in enumerate(failed):
            if why and rank not in self._warned:
                self.note(f"warning: rank {rank}: {why}")
        self._warned = {rank for rank, why in enumerate(failed) if why}

    def _meet(self) -> None:
        self.engine.communicators[0].broadcast([torch.zeros(1)]).wait()

    def _world(self) -> dict[str, int]:
        return {"size": self.engine.size, "steps_per_epoch": self.state.steps_per_epoch}


def choose(held: Sequence[Sequence[dict[str, Any]]]) -> CommitPlan | None:
    """The commit to resume from: the newest of the commits with the fewest missing parts; None if none has its model.

    Steps alone do not show which is newer: a larger world counts fewer of them for the same images.

    held  for each rank what its host has (HostMemory.inventory)
    """
    sources: dict[Commit, dict[str, int]] = {}
    worlds: dict[Commit, int] = {}
    for rank, commits in enumerate(held):
        for each in commits:
            commit = Commit(each["step"], each["size"], each["world"])
            worlds[commit] = max(worlds.get(commit, -1), each["worlds"])
            known = sources.setdefault(commit, {})
            for name in each["files"]:
                known.setdefault(name, rank)
    plans = [CommitPlan(commit, files) for commit, files in sources.items() if {MODEL, STATE} <= files.keys()]
    whole = [plan for plan in plans if len(plan.lost) < plan.commit.size]
    return min(whole, key=lambda plan: (len(plan.lost), -worlds[plan.commit], -plan.commit.step), default=None)


def has_model(held: Sequence[dict[str, Any]], commit: Commit) -> bool:
    """Whether a host that holds this has the commit's model: its ranks need not wait for another host's."""
    return any(Commit(each["step"], each["size"], each["world"]) == commit and MODEL in each["files"] for each in held)


def first_on_host(peers: Sequence[Peer], rank: int) -> int:
    """The lowest rank on the host of `rank`."""
    return min(peer.rank for peer in peers if peer.host == peers[rank].host)


def mirror_of(peers: Sequence[Peer], rank: int) -> int:
    """The rank that holds a copy of `rank`'s part: the next rank on another host, else the next rank."""
    others = [peers[(rank + step) % len(peers)] for step in range(1, len(peers))]
    away = [peer.rank for peer in others if peer.host != peers[rank].host]
    return (away or [others[0].rank])[0]
