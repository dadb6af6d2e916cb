"""Save and resume a run: the files of its state (train_state.py says what that is).

A checkpoint is a folder `step-00000020` that appears in one rename:
  model.safetensors      parameters and the optimizer's state: the same on all ranks
  rank-0003.safetensors  what only one rank has: its batch statistics and its compressor's state
  state.json             the position in the run, its history, the checksum of every file
Rank 0 reads and writes all files; other ranks' states travel to it and back, so no shared file system is needed.
"""

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wirebench.comm.engine import Engine
from wirebench.comm.ship import collect, distribute
from wirebench.errors import UserError
from wirebench.training.resharding import RankState, from_bytes, own_step, rank_states, to_bytes
from wirebench.training.train_state import TrainState
from wirebench.utils.files import keeping, write_atomically
from wirebench.utils.tensor_tree import pack, unpack

FORMAT = 4
MODEL, STATE = "model.safetensors", "state.json"


@dataclass
class Checkpoints:
    """The checkpoints of one run, in `directory`.

    state     what is saved and restored
    identity  what a resumed run must share with the run that saved: name -> value (model layout, data, seed ...)
    note      is told, on rank 0, what a person should know
    """

    directory: Path
    engine: Engine
    state: TrainState
    identity: dict[str, Any]
    keep: int
    note: Callable[[str], None]
    newest: str | None = None
    """The checkpoint that was saved or restored last; every rank knows it."""
    restored_from: Path | None = None
    """The checkpoint that was loaded; rank 0 knows it."""

    def save(self) -> None:
        """Save the state as it is; every rank calls it."""
        state = self.state.state_dict()
        parts = collect(self.engine, [pack(each.states[0]) for each in state["ranks"]])
        final = self.directory / f"step-{self.state.step:08d}"
        if self.engine.is_first:
            self._write(final, state, parts)
        else:
            deque(parts, maxlen=0)
        self.newest = final.name

    def _write(self, final: Path, state: Mapping[str, Any], parts: Iterator[bytes]) -> None:
        partial = self.directory / f".{final.name}.partial"
        try:
            with keeping(final, "the checkpoint cannot be written"):
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
                self._fill(partial, state, parts)
                shutil.rmtree(final, ignore_errors=True)
                os.rename(partial, final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self._prune(final)

    def _fill(self, folder: Path, state: Mapping[str, Any], parts: Iterator[bytes]) -> None:
        """All files of a checkpoint."""
        sums = {MODEL: _write(folder / MODEL, pack(state["model"]))}
        for rank, content in enumerate(parts):
            sums[_rank_file(rank)] = _write(folder / _rank_file(rank), content)
        about = {
            "format": FORMAT, "world": self._world(), "identity": self.identity, "files": sums,
            "progress": state["progress"],
        }  # fmt: skip
        write_atomically(folder / STATE, json.dumps({**about, "checksum": _checksum(about)}, indent=1))

    def restore(self, source: str) -> bool:
        """Load the state that `source` names (train.resume); every rank calls it. Whether there was one.

        `auto` takes the newest good checkpoint of this run, if there is one yet. A path is a checkpoint or a run's
        folder. A damaged one is named, and the one before it is used. UserError where nothing can be used. Between
        epochs a run may change its number of ranks (resharding.py); the step is then counted in this run's steps.
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
        (model, *_) = distribute(self.engine, content[:1] * self.engine.size)
        parts = rank_states(content[1:], self.engine.size) if content else []
        own = map(from_bytes, distribute(self.engine, [to_bytes(each) for each in parts]))
        ranks = [RankState([unpack(file) for file in each.states], each.joins, each.weight) for each in own]
        self.state.load_state_dict({"model": unpack(model), "ranks": ranks, "progress": chosen["progress"]})
        self.newest = chosen["folder"]
        return True

    def _choose(self, source: str) -> tuple[dict[str, Any] | None, list[bytes]]:
        """state.json and the files of the newest good checkpoint: the model's, then one for each rank."""
        candidates = _candidates(self.directory, source)
        for folder in candidates:
            try:
                state = _read_state(folder)
                self._check_identity(folder, state["identity"])
                state["folder"] = folder.name
                before, now, progress = state["world"], self._world(), state["progress"]
                if before != now:
                    progress["step"] = own_step(str(folder), progress["step"], before, now, self.state.can_reshard)
                    self.note(f"{before['size']} workers saved it, {now['size']} go on: no residual is lost")
                files = _read_files(folder, state["files"], [MODEL, *map(_rank_file, range(before["size"]))])
            except _DamagedError as error:
                self.note(f"{folder}: damaged ({error}); looking for the checkpoint before it")
                continue
            self.note(f"resuming from {folder}")
            self.restored_from = folder
            return state, files
        if candidates:
            raise UserError(f"train.resume: no checkpoint is whole, of {', '.join(str(c) for c in candidates)}")
        self.note(f"no checkpoint in {self.directory} yet: starting anew")
        return None, []

    def _world(self) -> dict[str, int]:
        return {"size": self.engine.size, "steps_per_epoch": self.state.steps_per_epoch}

    def _check_identity(self, folder: Path, theirs: Mapping[str, Any]) -> None:
        for name, value in self.identity.items():
            if theirs.get(name) != value:
                raise UserError(f"train.resume: {folder} has {name} = {theirs.get(name)!r}, this run has {value!r}")

    def _prune(self, newest: Path) -> None:
        """Remove the oldest; what a kill left half written; and steps of a future that this run did not take."""
        folders = _folders(self.directory)
        upto = folders.index(newest) + 1
        for folder in [*folders[: max(upto - self.keep, 0)], *folders[upto:], *self.directory.glob(".step-*.partial")]:
            shutil.rmtree(folder, ignore_errors=True)


def saved_identity(directory: Path, source: str) -> Mapping[str, Any]:
    """The identity that a run had which `source` (train.resume) names; {} where there is nothing to resume from.

    directory  the run's own checkpoints, which `auto` looks into
    What is damaged is passed over: `Checkpoints.restore` tells of it. UserError as there.
    """
    for folder in _candidates(directory, source):
        with suppress(_DamagedError):
            return _read_state(folder)["identity"]
    return {}


def _candidates(directory: Path, source: str) -> list[Path]:
    """Newest first."""
    if source == "auto":
        return _folders(directory)[::-1]
    path = Path(source)
    if path.name.startswith("step-") and path.is_dir():
        return [p for p in _folders(path.parent) if p.name <= path.name][::-1]
    for folder in (path / "checkpoints", path):
        if _folders(folder):
            return _folders(folder)[::-1]
    raise UserError(f"train.resume: {source}: no checkpoint there; it takes auto, a run's folder, or a step-... in it")


def _folders(directory: Path) -> list[Path]:
    """Checkpoints in order of their steps."""
    return sorted(p for p in directory.glob("step-*") if p.is_dir())


def _rank_file(rank: int) -> str:
    return f"rank-{rank:04d}.safetensors"


def _write(path: Path, content: bytes) -> str:
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


class _DamagedError(Exception):
    """A checkpoint cannot be used; the message says why."""


def _read_state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint, once it is known to be what was written; UserError for one of another version."""
    try:
        state = json.loads((folder / STATE).read_bytes())
        form, checksum = state["format"], state.pop("checksum")
    except OSError as error:
        raise _DamagedError(f"{STATE}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _DamagedError(f"{STATE} is not a checkpoint's") from error
    if form != FORMAT:
        # Before the checksum, which another version may have taken of something else.
        raise UserError(
            f"train.resume: {folder} has checkpoint format {form}, and this version reads format {FORMAT} only; "
            "resume it with the version that wrote it, or begin anew without train.resume"
        )
    if checksum != _checksum(state):
        raise _DamagedError(f"{STATE} does not match its checksum")
    return state


def _read_files(folder: Path, sums: Mapping[str, str], names: Sequence[str]) -> list[bytes]:
    """The contents of the named files, each of which must match its checksum."""
    contents = []
    for name in names:
        try:
            content = (folder / name).read_bytes()
        except OSError as error:
            raise _DamagedError(f"{name}: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != sums.get(name):
            raise _DamagedError(f"{name} does not match its checksum")
        try:
            unpack(content)
        except ValueError as error:
            raise _DamagedError(f"{name}: {error}") from error
        contents.append(content)
    return contents


def _checksum(state: Mapping[str, Any]) -> str:
    """Of everything in state.json but the checksum itself."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
