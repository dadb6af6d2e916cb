"""The files of a run's state (train_state.py), of a checkpoint on disk and of a commit in a host's memory alike.

  model.safetensors      parameters and the optimizer's state: the same on all ranks
  rank-0003.safetensors  what only one rank has: its batch statistics and its compressor's state
  state.json             the position in the run, its history; of a checkpoint also the checksum of every file

A checkpoint is a folder `step-00000020` that appears in one rename: it is complete or does not exist, and reading finds
damaged files. One of the same step becomes `step-00000020.before` until its successor is complete, so that a kill at
any time leaves a complete one. checkpoint.py decides when each is written, and by which rank. The files of a commit
appear one by one, each rank's its own (elastic/host_memory.py).
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from wirebench.errors import UserError
from wirebench.training.train_state import RankState
from wirebench.utils.files import keeping, readable, sync, write_atomically
from wirebench.utils.parsing import json_of
from wirebench.utils.tensor_tree import pack_to, unpack

FORMAT = 4
LENGTH_BYTES = 8
MODEL, STATE = "model.safetensors", "state.json"
BEFORE = ".before"
"""Suffix of a checkpoint's name while another checkpoint of the same step replaces it."""
_NAME = re.compile(rf"step-\d{{8,}}({re.escape(BEFORE)})?")
_PARTIAL = re.compile(r"\.step-\d{8,}\.partial")


@dataclass(frozen=True)
class Contents:
    """The contents of a checkpoint; they do not change while it is written.

    model     the tree that is the same on all ranks, as `snapshot` copies it
    ranks     each rank's tree, as `snapshot` copies it
    world     `size` and `steps_per_epoch`; identity: what a run that resumes must share
    progress  JSON
    """

    model: Mapping[str, Any]
    ranks: Sequence[Mapping[str, Any]]
    world: Mapping[str, int]
    identity: Mapping[str, Any]
    progress: Mapping[str, Any]


def write(final: Path, contents: Contents, keep: int) -> None:
    """Write the checkpoint `final`, then leave the newest `keep`.

    Raises Unwritable where it cannot be written; what is half written takes no room then, and the older ones stay.
    """
    partial = final.parent / f".{final.name}.partial"
    try:
        with keeping(final, "the checkpoint cannot be written"):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            _fill(partial, contents)
            if final.exists():
                before = final.with_name(final.name + BEFORE)
                shutil.rmtree(before, ignore_errors=True)
                os.rename(final, before)
            os.rename(partial, final)
            sync(final.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _prune(final, keep)


def _fill(folder: Path, contents: Contents) -> None:
    """All files of a checkpoint."""
    sums = {}
    for name, content in ((MODEL, contents.model), *((rank_file(n), each) for n, each in enumerate(contents.ranks))):
        write_file(folder / name, content)
        with (folder / name).open("rb") as file:
            sums[name] = hashlib.file_digest(file, "sha256").hexdigest()
    about = {"world": contents.world, "identity": contents.identity, "files": sums, "progress": contents.progress}
    write_file(folder / STATE, about)


def write_file(path: Path, content: Mapping[str, Any] | bytes) -> None:
    """Write a file of a state, which appears in one rename: a tree as `snapshot` copies it, or its bytes. OSError."""
    if isinstance(content, bytes):
        write_atomically(path, content)
    elif path.name == STATE:
        about = {"format": FORMAT, **content}
        write_atomically(path, json.dumps({**about, "checksum": _checksum(about)}, indent=1))
    else:
        partial = path.with_name(f".{path.name}.partial")
        pack_to(partial, content)
        os.replace(partial, path)


def is_whole(path: Path) -> bool:
    """Whether a state's file can be read; of tensors, whether it is as long as its header says."""
    try:
        if path.name == STATE:
            return bool(read_state(path.parent))
        with safe_open(path, "pt"):
            return True
    except (OSError, ValueError, DamagedError, SafetensorError):
        return False


def _prune(newest: Path, keep: int) -> None:
    """Remove the oldest; what a kill left half written; and steps of a future that this run did not take."""
    known = [folder for folder in folders(newest.parent) if folder.suffix != BEFORE]
    upto = known.index(newest) + 1
    replaced = [folder for folder in folders(newest.parent) if folder.suffix == BEFORE]
    partial = [folder for folder in newest.parent.iterdir() if _PARTIAL.fullmatch(folder.name)]
    for folder in [*known[: max(upto - keep, 0)], *known[upto:], *replaced, *partial]:
        shutil.rmtree(folder, ignore_errors=True)


def saved_identity(directory: Path, source: str) -> Mapping[str, Any]:
    """The identity of the run that `source` (train.resume) names; {} if there is nothing to resume from.

    directory  the run's own checkpoints, which `auto` looks into
    Damaged checkpoints are skipped: `Checkpoints.restore` reports them. UserError as there.
    """
    for folder in candidates(directory, source):
        with suppress(DamagedError):
            return read_state(folder)["identity"]
    return {}


def candidates(directory: Path, source: str) -> list[Path]:
    """Newest first."""
    if source == "auto":
        return folders(directory)[::-1]
    path = Path(source)
    if _NAME.fullmatch(path.name):
        known = [p for p in folders(path.parent) if _step(p) <= _step(path)]
        if path.stem in {p.stem for p in known}:
            return known[::-1]
    for folder in (path / "checkpoints", path):
        if folders(folder):
            return folders(folder)[::-1]
    raise UserError(f"train.resume: {source}: no checkpoint there; it takes auto, a run's folder, or a step-... in it")


def folders(directory: Path) -> list[Path]:
    """Checkpoints in order of their steps; one that another of the same step was replacing stands before that one.

    A folder of another name, such as a user's copy, is no checkpoint.
    """
    found = (p for p in directory.glob("step-*") if _NAME.fullmatch(p.name) and p.is_dir())
    return sorted(found, key=lambda p: (_step(p), p.suffix != BEFORE))


def _step(folder: Path) -> int:
    return int(folder.stem.removeprefix("step-"))


def rank_file(rank: int) -> str:
    """Name of the file of what only this rank has."""
    return f"rank-{rank:04d}.safetensors"


class DamagedError(Exception):
    """A checkpoint cannot be used; the message says why."""


def read_state(folder: Path) -> dict[str, Any]:
    """state.json of a checkpoint, once it is known to be what was written; UserError for one of another version."""
    try:
        state = json_of(readable(folder / STATE).read_bytes())
        form, checksum = state["format"], state.pop("checksum")
    except OSError as error:
        raise DamagedError(f"{STATE}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{STATE} is not a checkpoint's") from error
    if form != FORMAT:
        # Before the checksum, which another version may have taken of something else.
        raise UserError(
            f"train.resume: {folder} has checkpoint format {form}, and this version reads format {FORMAT} only; "
            "resume it with the version that wrote it, or begin anew without train.resume"
        )
    if checksum != _checksum(state):
        raise DamagedError(f"{STATE} does not match its checksum")
    return state


def read_files(folder: Path, sums: Mapping[str, str], size: int) -> list[bytes]:
    """The model's file, then the files of `size` ranks, in order; each must match its checksum."""
    contents = []
    for name in [MODEL, *map(rank_file, range(size))]:
        try:
            content = readable(folder / name).read_bytes()
        except OSError as error:
            raise DamagedError(f"{name}: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != sums.get(name):
            raise DamagedError(f"{name} does not match its checksum")
        try:
            unpack(content)
        except ValueError as error:
            raise DamagedError(f"{name}: {error}") from error
        contents.append(content)
    return contents


def to_bytes(state: RankState[bytes]) -> bytes:
    """Serialise `state`, to send it to its rank."""
    told = {"joins": state.joins, "weight": state.weight, "lengths": [len(file) for file in state.states]}
    head = json.dumps(told).encode()
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *state.states])


def from_bytes(content: bytes) -> RankState[bytes]:
    """The state that `to_bytes` serialised."""
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    head = json_of(content[LENGTH_BYTES:start])
    files = []
    for length in head["lengths"]:
        files.append(content[start : start + length])
        start += length
    return RankState(files, head["joins"], head["weight"])


def _checksum(state: Mapping[str, Any]) -> str:
    """SHA-256 of everything in state.json but the checksum itself."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
