"""Trainings that a study makes, on an emulated cluster or on this machine, each kept with a note of what it was."""

import contextlib
import fcntl
import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from papers.runner import ROOT, WIREBENCH, Command, Launch, attempt, shown, within
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.config.plugins import BEFORE
from wirebench.errors import UserError
from wirebench.record import notes, recorded, schema
from wirebench.topology.rates import parse_rate
from wirebench.utils.files import write_atomically

TRAIN = "train.py"
RESUMING = ("train.resume=auto", "train.checkpoint_every_epochs=1", "train.keep=1")


class Place(Protocol):
    """Where a command's ranks run."""

    @property
    def link(self) -> str:
        """Rate of every host's link; "" where it is not known."""

    @property
    def layout(self) -> str:
        """Ranks on each machine; "" where it is not known."""

    @property
    def note(self) -> Mapping[str, Any]:
        """What the notes of its runs say of it."""

    def check(self) -> None:
        """UserError for one that cannot be."""

    def on(self, tool: Sequence[str]) -> Command:
        """What runs `train.py ...` or `wirebench ...` there."""

    def otherwise(self, record: Mapping[str, Any]) -> str:
        """Why a run's record is of another place; "" where it is not."""


class Cluster(NamedTuple):
    """An emulated cluster: the rate of every link, and as many hosts of one rank, or a layout such as 2+3."""

    link: str
    hosts: int = 1
    layout: str = ""

    @property
    def words(self) -> Command:
        """The words that run a command on the cluster."""
        shape = ["--layout", self.layout] if self.layout else ["--hosts", str(self.hosts)]
        return [*WIREBENCH, "cluster", "run", *shape, "--link", self.link, "--"]

    @property
    def note(self) -> dict[str, Any]:
        """What the notes of its runs have of the cluster."""
        return {**({"layout": self.layout} if self.layout else {"hosts": self.hosts}), "link": self.link}

    def on(self, tool: Sequence[str]) -> Command:
        """See Place."""
        return [*self.words, *(["python"] if tool[0] == TRAIN else []), *tool]

    def otherwise(self, record: Mapping[str, Any]) -> str:
        """See Place. An emulated cluster always has the requested shape."""
        return ""

    def check(self) -> None:
        """UserError for one that cannot be."""
        parse_rate(self.link)
        if self.hosts < 1:
            raise UserError(f"--hosts: must be positive, got {self.hosts}")


@dataclass(frozen=True)
class Training:
    """A training: its name, its label, where it runs (None: in one process here), its config and overrides.

    It is made in a folder of its own, and is a line of the study's runs when it has left a result (recorded.py).
    folder       its name: a path below the results' folder
    keeps        files beside the record that stay with it
    may_diverge  whether a run that diverged is a result
    resumes      whether an interrupted one continues from its last epoch
    """

    folder: str
    label: str
    place: Place | None
    config: Path
    overrides: tuple[str, ...]
    keeps: tuple[str, ...] = ()
    may_diverge: bool = True
    resumes: bool = False

    def check(self) -> None:
        """UserError for what would fail."""
        if self.place is not None:
            self.place.check()
        try:
            resolve(loader.load(ROOT / self.config, list(self.overrides)))
        except UserError as error:
            raise UserError(f"{self.label}: {error}") from error

    def is_there(self, out: Path) -> bool:
        """Whether it left a result; UserError for a result of another cluster or composition."""
        run = recorded.at(out / self.folder)
        if run is None:
            return False
        refuse_another(run.folder, run.note, self._whole_note(out))
        return True

    def make(self, out: Path, launch: Launch) -> bool:
        """Train; whether that left a result. UserError where a part of another composition waits to be gone on with."""
        folder = out / self.folder
        made = part_of(folder)
        with held(folder) as mine:
            return mine and self._make(out, folder, made, launch)

    def _make(self, out: Path, folder: Path, made: Path, launch: Launch) -> bool:
        over = not self.resumes
        if over:
            shutil.rmtree(made, ignore_errors=True)
        elif (made / recorded.NOTE).exists():
            refuse_another(made, notes.note(made / recorded.NOTE, {}), self._whole_note(out))
        else:
            shutil.rmtree(made, ignore_errors=True)  # of an older version: nobody knows what it is
            made.mkdir(parents=True)
            write_atomically(made / recorded.NOTE, json.dumps(self._whole_note(out), indent=1) + "\n")
        try:
            if not attempt(self._in(made), made, launch):
                return False
            over = True
            if not self.may_diverge and schema.read(made)["status"] == "diverged":
                return False
            if self.place is not None and (wrong := self.place.otherwise(schema.read(made))):
                print(f"{self.label}: {wrong}", file=sys.stderr)
                return False
            recorded.append(out, self.folder, self.noted(made, out), made, self.keeps)
            return True
        finally:
            if over:
                shutil.rmtree(made, ignore_errors=True)

    def noted(self, made: Path, out: Path) -> dict[str, Any]:
        """The note of the run that was made in the folder `made`."""
        return self._whole_note(out)

    def _whole_note(self, out: Path) -> dict[str, Any]:
        return {**self.note, "launch": shown(self.command(out))}

    def command(self, out: Path) -> Command:
        """Return the command that makes it below `out`."""
        return self._in(out / self.folder)

    def _in(self, folder: Path) -> Command:
        resuming = RESUMING if self.resumes else ()
        tool = [TRAIN, str(self.config), *self.overrides, f"output.dir={within(folder)}", *resuming]
        return [sys.executable, *tool] if self.place is None else self.place.on(tool)

    @property
    def note(self) -> dict[str, Any]:
        """What its note says beside the launch."""
        return {"label": self.label, **({} if self.place is None else self.place.note)}


def part_of(path: Path) -> Path:
    """The folder in which the run of this path is made."""
    return path.with_name(f".{path.name}.part")


@contextlib.contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Whether this process alone makes `folder`; False, with a line on stderr, if another one does."""
    lock = folder.with_name(f".{folder.name}.lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print(f"{folder}: another process makes it", file=sys.stderr)
            yield False
            return
        try:
            yield True
        finally:
            lock.unlink(missing_ok=True)


def refuse_another(path: Path, note: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """UserError if the note of the run at `path` is another's than the wanted one's; of its launch, train.py's
    arguments count.
    """
    for key, value in wanted.items():
        known = note.get(key)
        if key == "launch":
            known, value = (_told(str(launch)) for launch in (known, value))
        if known != value:
            raise UserError(
                f"{path}: {key} is {known!r}, and {value!r} is asked for; --again makes the run anew, --out names "
                "another folder"
            )


def _told(launch: str) -> str:
    """The words after train.py; where the run was put, how the cluster was made, and the words' order make it no other
    run.
    """
    words = shlex.split(launch.partition(f"{TRAIN} ")[2].replace(f"={BEFORE}", "=papers."))
    given = (word for word in words if not word.startswith("output.dir=") and word not in RESUMING)
    return shlex.join(sorted(given))
