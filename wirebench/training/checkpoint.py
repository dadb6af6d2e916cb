"""Save and resume the whole state of a run, bit for bit.

A checkpoint is a folder `step-00000020` that appears in one rename:
  model.safetensors    parameters, momentum: the same on all ranks
  rank-0003.safetensors  what only one rank has: its batch statistics and its compressor's state
  state.json           the position in the run, its history, the checksum of every file
Random numbers need no state: every draw is named by seed, epoch, rank and step (seeding.py). Rank 0 reads and writes
all files; other ranks' states travel to it and back, so no shared file system is needed.
"""

import hashlib
import json
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from wirebench.comm.engine import Engine
from wirebench.comm.ship import collect, distribute
from wirebench.errors import UserError
from wirebench.training.replica import Replica
from wirebench.training.resharding import RankState, from_bytes, own_step, rank_states, to_bytes
from wirebench.utils.files import write_atomically

FORMAT = 3
MODEL, STATE = "model.safetensors", "state.json"


class Stateful(Protocol):
    """What a compressor offers here."""

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that a resumed run needs."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore them."""
        ...


class Reshardable(Protocol):
    """What a compressor offers that can be resumed by another number of ranks."""

    def take_over(self, states: Sequence[Mapping[str, Tensor]], joins: bool = False) -> None:
        """Begin with the sum of the residuals of several ranks, or with none, as a rank that joins."""
        ...


@dataclass
class Checkpoints:
    """The checkpoints of one run, in `directory`.

    identity  what a resumed run must share with the run that saved: name -> value (model layout, data, seed ...)
    note      is told, on rank 0, what a person should know
    """

    directory: Path
    engine: Engine
    workers: Sequence[Replica]
    compressors: Sequence[Stateful]
    identity: dict[str, Any]
    keep: int
    note: Callable[[str], None]
    newest: str | None = None
    """The checkpoint that was saved or restored last; every rank knows it."""
    restored_from: Path | None = None
    """The checkpoint that was loaded; rank 0 knows it."""

    def save(self, step: int, progress: Mapping[str, Any]) -> None:
        """Save the state after `step` steps; `progress` is JSON that `restore` gives back. Every rank calls it."""
        mine = [save_tensors(_of_rank(w, c)) for w, c in zip(self.workers, self.compressors, strict=True)]
        parts = collect(self.engine, mine)
        final = self.directory / f"step-{step:08d}"
        if self.engine.is_first:
            self._write(final, step, progress, parts)
        else:
            deque(parts, maxlen=0)
        self.newest = final.name

    def _write(self, final: Path, step: int, progress: Mapping[str, Any], parts: Iterator[bytes]) -> None:
        partial = self.directory / f".{final.name}.partial"
        try:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            sums = {MODEL: _write(partial / MODEL, save_tensors(_of_model(self.workers[0])))}
            for rank, content in enumerate(parts):
                sums[_rank_file(rank)] = _write(partial / _rank_file(rank), content)
            state = {
                "format": FORMAT, "step": step, "world": self._world(), "identity": self.identity, "files": sums,
                "progress": progress,
            }  # fmt: skip
            write_atomically(partial / STATE, json.dumps({**state, "checksum": _checksum(state)}, indent=1))
            shutil.rmtree(final, ignore_errors=True)
            os.rename(partial, final)
        except OSError as error:
            raise UserError(f"{final}: the checkpoint cannot be written: {error.strerror}") from error
        self._prune(final)

    def restore(self, source: str) -> dict[str, Any] | None:
        """Load the state that `source` names (train.resume) into workers and compressors; every rank calls it.

        `auto` takes the newest good checkpoint of this run, and returns None where there is none yet. A path is a
        checkpoint or a run's folder. A damaged one is named, and the one before it is used. Returns state.json:
        `step`, counted in this run's steps, and `progress`. UserError where nothing can be used. Between epochs a run
        may change its number of ranks (handover.py).
        """
        verdict: dict[str, Any] = {}
        content: list[bytes] = []
        if self.engine.is_first:
            try:
                state, content = self._choose(source)
                verdict = {"state": state}
            except UserError as error:
                verdict = {"error": str(error)}
        verdict = json.loads(distribute(self.engine, [json.dumps(verdict).encode()] * self.engine.size)[0])
        if "error" in verdict:
            raise UserError(verdict["error"])
        if verdict["state"] is None:
            return None
        shared = distribute(self.engine, content[:1] * self.engine.size)
        parts = rank_states(content[1:], self.engine.size) if content else []
        own = distribute(self.engine, [to_bytes(each) for each in parts])
        for worker, compressor, model, estate in zip(self.workers, self.compressors, shared, own, strict=True):
            _load_model(worker, load_tensors(model))
            _load_rank(worker, compressor, from_bytes(estate))
        self.newest = verdict["state"]["folder"]
        return verdict["state"]

    def _choose(self, source: str) -> tuple[dict[str, Any] | None, list[bytes]]:
        """state.json and the files of the newest good checkpoint: the model's, then one for each rank."""
        candidates = self._candidates(source)
        for folder in candidates:
            try:
                state = _read_state(folder)
                self._check_identity(folder, state["identity"])
                state["folder"] = folder.name
                before, now = state["world"], self._world()
                if before != now:
                    heirs = all(hasattr(getattr(each, "inner", each), "take_over") for each in self.compressors)
                    state["step"] = own_step(str(folder), state["step"], before, now, heirs)
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

    def _candidates(self, source: str) -> list[Path]:
        """Newest first."""
        if source == "auto":
            return _folders(self.directory)[::-1]
        path = Path(source)
        if path.name.startswith("step-") and path.is_dir():
            return [p for p in _folders(path.parent) if p.name <= path.name][::-1]
        for folder in (path / "checkpoints", path):
            if _folders(folder):
                return _folders(folder)[::-1]
        raise UserError(
            f"train.resume: {source}: no checkpoint there; it takes auto, a run's folder, or a step-... in it"
        )

    def _world(self) -> dict[str, int]:
        return {"size": self.engine.size, "steps_per_epoch": self.workers[0].shard.steps_per_epoch}

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
    """state.json of a checkpoint, once it is known to be what was written."""
    try:
        state = json.loads((folder / STATE).read_bytes())
        if state["format"] != FORMAT:
            raise _DamagedError(f"format {state['format']}, this version reads {FORMAT}")
        checksum = state.pop("checksum")
    except OSError as error:
        raise _DamagedError(f"{STATE}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise _DamagedError(f"{STATE} is not a checkpoint's") from error
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
            load_tensors(content)
        except SafetensorError as error:
            raise _DamagedError(f"{name}: {error}") from error
        contents.append(content)
    return contents


def _checksum(state: Mapping[str, Any]) -> str:
    """Of everything in state.json but the checksum itself."""
    as_read = json.loads(json.dumps(state))  # numbers as keys (the health's steps) sort otherwise before than after
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()


def _of_model(worker: Replica) -> dict[str, Tensor]:
    tensors = {}
    names = {parameter: layer.name for parameter, layer in zip(worker.flat.parameters, worker.flat.layers, strict=True)}
    for parameter, name in names.items():
        tensors[f"parameter.{name}"] = _plain(parameter)
        momentum = worker.optimizer.state.get(parameter, {}).get("momentum_buffer")
        if momentum is not None:
            tensors[f"momentum.{name}"] = _plain(momentum)
    return tensors


def _of_rank(worker: Replica, compressor: Stateful) -> dict[str, Tensor]:
    tensors = {f"buffer.{name}": _plain(buffer) for name, buffer in worker.model.named_buffers()}
    tensors["epoch_loss"] = _plain(worker.epoch_loss)
    return tensors | {f"compressor.{name}": _plain(tensor) for name, tensor in compressor.state_dict().items()}


def _plain(tensor: Tensor) -> Tensor:
    """A contiguous copy on the host that shares memory with nothing, as safetensors asks for."""
    return tensor.detach().to("cpu", copy=True).contiguous()


@torch.no_grad()
def _load_model(worker: Replica, tensors: Mapping[str, Tensor]) -> None:
    for parameter, layer in zip(worker.flat.parameters, worker.flat.layers, strict=True):
        parameter.copy_(tensors[f"parameter.{layer.name}"])
        momentum = tensors.get(f"momentum.{layer.name}")
        if momentum is not None:
            # Of the parameter's own strides, which the fused update relies on.
            worker.optimizer.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(momentum)


@torch.no_grad()
def _load_rank(worker: Replica, compressor: Stateful, estate: RankState) -> None:
    tensors, *others = [load_tensors(file) for file in estate.files]
    for name, buffer in worker.model.named_buffers():
        buffer.copy_(tensors[f"buffer.{name}"])
    worker.epoch_loss.copy_(tensors["epoch_loss"])
    states = [_of_compressor(each, worker.device) for each in (tensors, *others)]
    if others or estate.joins:
        cast(Reshardable, compressor).take_over(states, estate.joins)
    else:
        compressor.load_state_dict(states[0])


def _of_compressor(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    kept = {name.removeprefix("compressor."): t for name, t in tensors.items() if name.startswith("compressor.")}
    return {name: tensor.to(device) for name, tensor in kept.items()}
