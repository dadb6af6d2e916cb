"""What a resumed run needs to end, bit for bit, as if it had never stopped: `TrainState`, which knows nothing of files.

Something more that is to survive a resume becomes a part of it; checkpoint.py writes whatever `state_dict` returns.
Random numbers need no state: every draw is named by seed, epoch, rank and step (wirebench/utils/rng.py).

A run may resume with another world size. A rank that stays keeps its own state. Each rank that leaves hands its
residual on to one that stays, so that no gradient is lost. A rank that joins begins with the state that all ranks
share, and with an empty residual. A residual would have been divided by the old world size, and will be divided by the
new one. So it is multiplied by the new size over the old: its part in the average does not change.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch

from wirebench.data.shard import Takeover, images_seen
from wirebench.exchange.holders import Holder, exchanged, exchanges, restore
from wirebench.gradient.optimizer_state import OptimizerState
from wirebench.training.replica import Replica
from wirebench.utils.tensor_tree import on_device

State = TypeVar("State")


class Stateful(Protocol):
    """Interface of each part of the state."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state that a resumed run needs: a tree of tensors and plain values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        ...


class RankState(NamedTuple, Generic[State]):
    """What a rank begins with: the states of one rank or of several, its own first.

    states  as the contents of their files, or as the trees in these
    joins   the rank is new: it takes only the shared part of the one state here, which is another rank's
    weight  the new world size over the earlier one
    """

    states: list[State]
    joins: bool = False
    weight: float = 1.0


def rank_states(files: Sequence[bytes | None], size: int) -> list[RankState[bytes]]:
    """One for each of `size` ranks, from the files of the ranks of an earlier world, in order; None: it is lost."""
    states = []
    known = [file for file in files if file is not None]
    for rank in range(size):
        mine = known[rank::size]
        states.append(RankState(mine or known[:1], not mine, size / len(files)))
    return states


class TrainState:
    """The state of a run on this process's ranks.

    workers      their replicas; compressors: what each of them keeps between steps, in the same order
    bookkeeping  further parts by name, whose states are JSON, rank 0's for all
    warnings     warnings shown to the user so far; all code that warns adds to this list
    step         the next step to do
    history      the epochs that are summed up
    worlds       changes of the world that an elastic run has gone through, as in the record
    left_behind  a warning of the part of the loaded state that does not fit this run's schedule; "" without one
    open_epoch   the known part of the history's entry for an epoch that is trained but not evaluated yet
    """

    def __init__(
        self,
        workers: Sequence[Replica],
        compressors: Sequence[Holder],
        bookkeeping: Mapping[str, Stateful],
        warnings: list[str],
    ) -> None:
        self.workers, self.compressors, self.bookkeeping = workers, compressors, bookkeeping
        self.warnings = warnings
        self.optimizers = [OptimizerState(worker.optimizer, worker.flat) for worker in workers]
        self.step = 0
        self.history: list[dict[str, Any]] = []
        self.open_epoch: dict[str, Any] | None = None
        self.worlds: list[dict[str, Any]] = []
        self.left_behind = ""
        self._seconds_before, self._began = 0.0, time.perf_counter()

    @property
    def steps_per_epoch(self) -> int:
        """Steps in which the world sees the training split once."""
        return self.workers[0].shard.steps_per_epoch

    @property
    def seconds(self) -> float:
        """Seconds of training so far, earlier parts of a resumed run included."""
        return self._seconds_before + time.perf_counter() - self._began

    @property
    def can_reshard(self) -> bool:
        """Whether another number of ranks can take over what the compressors hold."""
        return all(each.takes_over for each in self.compressors)

    @property
    def epoch_is_over(self) -> bool:
        """Whether an earlier world has left no step of its epoch to this one, and it is not summed up yet."""
        entry, length = self.workers[0].shard.entry, self.steps_per_epoch
        if entry is None or entry.step < length or self.step != (entry.epoch + 1) * length:
            return False
        return self.open_epoch is None and all(each["epoch"] != entry.epoch for each in self.history)

    def take_over(self, progress: dict[str, Any], world: Mapping[str, int]) -> None:
        """Count in this world's steps what `progress`, of the earlier `world`, counts in that one's."""
        shard = self.workers[0].shard
        epoch, steps = divmod(progress["step"], world["steps_per_epoch"])
        entry = Takeover(*progress["entry"]) if progress.get("entry") else None
        images = images_seen(entry, epoch, steps, shard.batch_size * world["size"])
        progress["step"] = shard.take_over(epoch, images)
        progress["entry"] = _plain(shard.entry)

    def start_watch(self) -> None:
        """Call when training begins or resumes: then the time that a change of world cost is known."""
        self._began = time.perf_counter()
        for change in self.worlds:
            if "began" in change:
                change["seconds"] = time.time() - change.pop("began")

    def state_dict(self) -> dict[str, Any]:
        """The state, of which nothing is copied.

        model     a tree that is the same on all ranks: parameters and the optimizer's whole state
        ranks     for each rank of this process a RankState with one tree: batch statistics, loss, what its method keeps
        progress  JSON
        """
        return {
            "model": {"parameter": _parameters(self.workers[0]), "optimizer": self.optimizers[0].state_dict()},
            "ranks": [RankState([_of_rank(w, c)]) for w, c in zip(self.workers, self.compressors, strict=True)],
            "progress": {
                "step": self.step,
                "entry": _plain(self.workers[0].shard.entry),
                "history": self.history,
                "open_epoch": self.open_epoch,
                "seconds": self.seconds,
                "warnings": self.warnings,
                "worlds": self.worlds,
                **{name: part.state_dict() for name, part in self.bookkeeping.items()},
            },
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; a RankState may hold several trees, of ranks that it takes over."""
        for worker, optimizer in zip(self.workers, self.optimizers, strict=True):
            for name, parameter in _parameters(worker).items():
                parameter.copy_(state["model"]["parameter"][name])
            optimizer.load_state_dict(state["model"]["optimizer"])
        for worker, compressor, rank_state in zip(self.workers, self.compressors, state["ranks"], strict=True):
            _load_rank(worker, compressor, rank_state)
        progress, before = state["progress"], exchanged(state["ranks"][0].states[0]["compressor"])
        for worker in self.workers:
            worker.shard.entry = Takeover(*progress["entry"]) if progress.get("entry") else None
        self.step, self._seconds_before = progress["step"], progress["seconds"]
        self.warnings[:] = progress["warnings"]
        if before != (now := exchanges(self.compressors[0])):
            self.left_behind = (
                f"train.resume: the earlier run exchanged {before}, and this one exchanges {now}: it begins from the "
                "model, and the ranks' residuals are left behind"
            )
            self.warnings.append(self.left_behind)
        self.worlds = progress.get("worlds", [])
        # A run that max_steps ended within an epoch has summed that epoch up already; the epoch continues now.
        whole = self.step // self.steps_per_epoch
        self.history = [entry for entry in progress["history"] if entry["epoch"] < whole]
        self.open_epoch = progress["open_epoch"]
        for name, part in self.bookkeeping.items():
            if name in progress:
                part.load_state_dict(progress[name])


def _parameters(worker: Replica) -> dict[str, torch.nn.Parameter]:
    return {layer.name: p for p, layer in zip(worker.flat.parameters, worker.flat.layers, strict=True)}


def _plain(entry: Takeover | None) -> list[int] | None:
    return None if entry is None else list(entry)


def _of_rank(worker: Replica, compressor: Holder) -> dict[str, Any]:
    buffers = dict(worker.model.named_buffers())
    return {"buffer": buffers, "epoch_loss": worker.epoch_loss, "compressor": compressor.state_dict()}


def _load_rank(worker: Replica, compressor: Holder, rank_state: RankState[dict[str, Any]]) -> None:
    mine = rank_state.states[0]
    for name, buffer in worker.model.named_buffers():
        buffer.copy_(mine["buffer"][name])
    # The losses of leaving ranks count in the epoch's mean. A new rank takes the state of another rank, whose loss does
    # not count again.
    losses = sum(state["epoch_loss"] for state in rank_state.states)
    worker.epoch_loss.copy_(losses * (not rank_state.joins))
    kept = [on_device(state["compressor"], worker.device) for state in rank_state.states]
    restore(compressor, kept, rank_state.joins, rank_state.weight)
