"""Save and resume a run: when its state is copied, written and read, and by whom.

train_state.py defines the state, state_files.py its files. Training pauses while the state is copied and other
ranks' parts travel to rank 0. It continues while a thread of rank 0's process writes the copy. That process alone uses
the disk, so no shared file system is needed, and the ranks need no message to complete a checkpoint. No message travels
during training, whose traffic is being measured. Rank 0 holds the copy of all ranks' parts until it is written.
"""

import functools
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from wirebench.comm.engine import Engine
from wirebench.comm.ship import collect, distribute
from wirebench.errors import UserError
from wirebench.training.state_files import (
    Contents,
    DamagedError,
    candidates,
    from_bytes,
    read_files,
    read_state,
    to_bytes,
    write,
)
from wirebench.training.train_state import RankState, TrainState, rank_states
from wirebench.utils.background import Background
from wirebench.utils.tensor_tree import snapshot, unpack


@dataclass
class Checkpoints:
    """The checkpoints of one run, in `directory`.

    state     what is saved and restored
    identity  what a resumed run must share with the run that saved: name -> value (model layout, data, seed ...)
    note      called, on rank 0, with each line that the user should read
    """

    directory: Path
    engine: Engine
    state: TrainState
    identity: dict[str, Any]
    keep: int
    note: Callable[[str], None]
    newest: str | None = None
    """The newest checkpoint known to be complete: rank 0 knows it soon, the others when the next one is saved."""
    under_way: str | None = None
    """The checkpoint that rank 0 was writing when this rank last heard from it."""
    restored_from: Path | None = None
    """The checkpoint that was loaded; rank 0 knows it."""
    _saved: int = 0
    _stall_seconds: float = 0.0
    _writer: Background = field(default_factory=functools.partial(Background, "wirebench-checkpoint"))

    def save(self) -> None:
        """Copy the current state, for a thread that writes the copy during training; every rank calls it.

        It waits for the checkpoint before this one; raises Unwritable on rank 0 if that could not be written.
        """
        self.wait()
        self._agree()
        name = f"step-{self.state.step:08d}"
        contents = self._copied()
        if contents is not None:
            self._writer.submit(functools.partial(write, self.directory / name, contents, self.keep))
        self.under_way = name
        self._saved += 1

    def look(self) -> None:
        """Between steps: raise what `wait` would, if that is known already."""
        if self.under_way and not self._writer.busy():
            self.wait()

    def wait(self) -> None:
        """Return when the last checkpoint is complete; ranks without rank 0 have nothing to wait for.

        Raises Unwritable, once, where it could not be written.
        """
        if self.engine.is_first:
            # First of all, so that later callers do not take a failed checkpoint for complete.
            name, self.under_way = self.under_way, None
            self._writer.wait()
            self.newest = name or self.newest

    def settle(self) -> None:
        """Before this process ends for another reason: like `wait`, but a failure here is noted, not raised."""
        try:
            self.wait()
        except Exception as error:
            self.note(f"warning: {error}")

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """A context for the time that training waits for checkpoints."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._stall_seconds += time.perf_counter() - began

    def summary(self) -> dict[str, Any]:
        """The record's `checkpoints`."""
        return {"saved": self._saved, "stall_seconds": self._stall_seconds if self._saved else 0.0}

    def _agree(self) -> None:
        """Every rank knows that the one under way is complete: rank 0 does not come here where it is not."""
        if self.engine.distributed:
            self.engine.communicators[0].broadcast([torch.zeros(1)]).wait()
        self.newest, self.under_way = self.under_way or self.newest, None

    def _copied(self) -> Contents | None:
        """The state of all ranks, on rank 0's process; None elsewhere."""
        state = self.state.state_dict()
        mine = [each.states[0] for each in state["ranks"]]
        if not self.engine.is_first:
            deque(collect(self.engine, mine[0]), maxlen=0)
            return None
        model, own, progress = (snapshot(tree) for tree in (state["model"], mine, state["progress"]))
        return Contents(model, [*own, *collect(self.engine, {})], self._world(), self.identity, progress)

    def restore(self, source: str) -> bool:
        """Load the state that `source` names (train.resume); every rank calls it. Whether there was one.

        `auto` takes the newest good checkpoint of this run, if there is one yet. A path is a checkpoint or a run's
        folder. A damaged one is named, and the one before it is used. UserError where nothing can be used. The
        number of ranks may have changed (train_state.py); the step is then counted in this run's steps.
        """
        chosen: dict[str, Any] | None = None
        content: list[bytes] = []
        error = ""
        if self.engine.is_first:
            try:
                chosen, content = self._choose(source)
            except UserError as mistake:
                error = str(mistake)
        verdict = json.dumps({"found": chosen, "error": error}).encode()
        chosen, error = json.loads(distribute(self.engine, [verdict] * self.engine.size)[0]).values()
        if error:
            raise UserError(error)
        if chosen is None:
            return False
        self._spread(chosen, content)
        self.newest = chosen["folder"]
        return True

    def load(
        self, chosen: dict[str, Any] | None, content: Sequence[bytes | None], model: bytes, have: Sequence[bool]
    ) -> None:
        """Load a state from elsewhere than a checkpoint; every rank calls it.

        chosen   rank 0: its `progress` and the `world` that it is of
        content  rank 0: the model's file, then one for each rank of that world; None where it is lost
        have     which ranks have the model's file already; model: its content, where this one has
        """
        if chosen is not None and chosen["world"] != self._world():
            self.state.take_over(chosen["progress"], chosen["world"])
        (told,) = distribute(self.engine, [json.dumps(chosen).encode()] * self.engine.size)
        self._spread(json.loads(told), content, model, have)

    def _spread(
        self, chosen: Mapping[str, Any], content: Sequence[bytes | None], model: bytes = b"", have: Sequence[bool] = ()
    ) -> None:
        """Load what rank 0 has read, on all ranks; `have`: those that need not get the model from it."""
        needs = [not has for has in have] or [True] * self.engine.size
        (got, *_) = distribute(self.engine, [(content[0] or b"") * need for need in needs] if content else [])
        model = model or got
        parts = rank_states(content[1:], self.engine.size) if content else []
        own = map(from_bytes, distribute(self.engine, [to_bytes(each) for each in parts]))
        ranks = [RankState([unpack(file) for file in each.states], each.joins, each.weight) for each in own]
        self.state.load_state_dict({"model": unpack(model), "ranks": ranks, "progress": chosen["progress"]})

    def _choose(self, source: str) -> tuple[dict[str, Any] | None, list[bytes]]:
        """state.json and the files of the newest good checkpoint: the model's, then one for each rank."""
        known = candidates(self.directory, source)
        for folder in known:
            try:
                state = read_state(folder)
                self._check_identity(folder, state["identity"])
                state["folder"] = folder.name
                before, now, progress = state["world"], self._world(), state["progress"]
                if before != now:
                    if not self.state.can_reshard:
                        raise UserError(
                            f"train.resume: {folder} has engine.workers = {before['size']}, this run {now['size']}, "
                            "and this compressor cannot hand over what it holds: it has no take_over"
                        )
                    self.state.take_over(progress, before)
                    self.note(f"{before['size']} workers saved it, {now['size']} go on")
                files = read_files(folder, state["files"], before["size"])
            except DamagedError as error:
                self.note(f"{folder}: damaged ({error}); looking for the checkpoint before it")
                continue
            self.note(f"resuming from {folder}")
            self.restored_from = folder
            return state, files
        if known:
            raise UserError(f"train.resume: no checkpoint is whole, of {', '.join(str(c) for c in known)}")
        self.note(f"no checkpoint in {self.directory} yet: starting anew")
        return None, []

    def _world(self) -> dict[str, int]:
        return {"size": self.engine.size, "steps_per_epoch": self.state.steps_per_epoch}

    def _check_identity(self, folder: Path, theirs: Mapping[str, Any]) -> None:
        for name, value in self.identity.items():
            if theirs.get(name) != value:
                raise UserError(f"train.resume: {folder} has {name} = {theirs.get(name)!r}, this run has {value!r}")
