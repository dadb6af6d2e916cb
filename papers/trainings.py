"""Trainings that a study makes, on an emulated cluster or on this machine, each kept with a note of what it was."""

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from papers.runner import ROOT, WIREBENCH, Busy, Command, Launch, attempt, shown, within
from wirebench.cluster.plan import make_plan
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.config.plugins import current
from wirebench.errors import UserError
from wirebench.record import notes, recorded, schema
from wirebench.record.folder_lock import FolderLock
from wirebench.record.notes import NotedRun
from wirebench.topology.rates import parse_rate
from wirebench.topology.tree import Topology
from wirebench.utils.files import write_atomically

Composition = tuple[str, Sequence[str]]
"""A config, and what is laid over it."""
TRAIN = "train.py"
TOOLS = (TRAIN, "bench pods")
"""What trains: each takes a config, and words laid over it."""
RESUMING = ("train.resume=auto", "train.checkpoint_every_epochs=1", "train.keep=1")


class OwnCluster(NamedTuple):
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
        """What runs `train.py ...` or `wirebench ...` there."""
        return [*self.words, *(["python"] if tool[0] == TRAIN else []), *tool]

    def otherwise(self, record: Mapping[str, Any]) -> str:
        """Why a run's record is of another place: it never is, since the cluster always has the requested shape."""
        return ""

    def check(self) -> None:
        """UserError for one that cannot be."""
        if self.hosts < 1:
            raise UserError(f"--hosts: must be positive, got {self.hosts}")
        make_plan(self.layout or "+".join(["1"] * self.hosts), self.link)


class Launched(NamedTuple):
    """Ranks that a launcher of the user's starts: its words, the layout that they give, the links' rate if known."""

    words: tuple[str, ...]
    layout: str = ""
    link: str = ""

    @property
    def note(self) -> dict[str, Any]:
        """What the notes of its runs have of the launcher's machines."""
        return {key: value for key, value in (("layout", self.layout), ("link", self.link)) if value}

    def on(self, tool: Sequence[str]) -> Command:
        """What runs `train.py ...` or `wirebench ...` there.

        torchrun starts Python itself; others start this one, at the same path everywhere.
        """
        by_itself = any(Path(word).name == "torchrun" or word == "torch.distributed.run" for word in self.words)
        begin = [] if by_itself else [sys.executable]
        return [*self.words, *begin, *(tool if tool[0] == TRAIN else ["-m", "wirebench", *tool[1:]])]

    def otherwise(self, record: Mapping[str, Any]) -> str:
        """Why a run's record is of another place: its ranks were on other machines than the layout says; or ""."""
        hosts = record["environment"].get("hosts") or []
        there = "+".join(str(len(host["ranks"])) for host in hosts)
        return f"ran on {there or 'unknown machines'}, not on {self.layout}" if self.layout not in ("", there) else ""

    def check(self) -> None:
        """UserError for one that cannot be."""
        if self.link:
            parse_rate(self.link)
        if self.layout:
            Topology.parse(self.layout)


TrainingPlace = OwnCluster | Launched
"""Where a command's ranks run."""


@dataclass(frozen=True)
class Training:
    """A training: its name, its label, where it runs (None: in one process here), its config and overrides.

    It is made in a folder of its own, and is a line of the study's runs when it has left a result (recorded.py).
    folder       its name: a path below the results' folder
    keeps        files beside the record that stay with it
    may_diverge  whether a run that diverged is a result
    resumes      whether an interrupted one continues from its last epoch
    about        what else its note says; reads: what its note has of the files in its folder
    tool         the words of the command that trains
    """

    folder: str
    label: str
    place: TrainingPlace | None
    config: Path
    overrides: tuple[str, ...]
    keeps: tuple[str, ...] = ()
    may_diverge: bool = True
    resumes: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)
    reads: Callable[[Path], Mapping[str, Any]] | None = None
    tool: tuple[str, ...] = (TRAIN,)

    def check(self) -> None:
        """UserError for what would fail."""
        if self.place is not None:
            self.place.check()
        try:
            resolve(loader.load(ROOT / self.config, list(self.overrides)))
        except UserError as error:
            raise UserError(f"{self.label}: {error}") from error

    def is_there(self, out: Path) -> bool:
        """Whether it left a result; UserError for a result, or a part, of another cluster or composition."""
        run, made = recorded.at(out / self.folder), part_of(out / self.folder)
        ended = ended_of(made)
        if run is not None:
            refuse_another(run.folder, run.note, self._identity(out))
            if not _is_another(ended, run):
                return True
        for left in (made, ended) if self.resumes and run is None else (ended,):
            if (left / recorded.NOTE).exists():
                refuse_another(left, notes.note(left / recorded.NOTE, {}), self._identity(out))
        return False

    def make(self, out: Path, launch: Launch, again: bool = False) -> bool:
        """Train, if that is still to be done; whether there is a result. Busy where another call trains it."""
        made = part_of(out / self.folder)
        made.parent.mkdir(parents=True, exist_ok=True)
        lock = made.with_name(f"{made.name}.lock")
        try:
            with FileLock(lock, timeout=0):
                try:
                    return (not again and self.is_there(out)) or self._make(made, out, launch, again)
                finally:
                    lock.unlink(missing_ok=True)
        except Timeout as error:
            raise Busy(f"{within(out / self.folder)}: another call makes this run now") from error

    def _make(self, made: Path, out: Path, launch: Launch, again: bool) -> bool:
        ended = ended_of(made)
        if again:
            shutil.rmtree(ended, ignore_errors=True)
        if not ended.exists():
            if not (_is_free(made) and self._train(made, out, launch)):
                return False
            made.rename(ended)
        note = {**self._identity(out), **self.about, **(self.reads(ended) if self.reads else {})}
        try:
            recorded.append(out, self.folder, note, ended, self.keeps)
        except (OSError, UserError) as error:
            raise UserError(
                f"{self.label}: the run has ended, but cannot be added to the results: {error}; it stays in "
                f"{within(ended)}, and the next call without --again adds it"
            ) from error
        shutil.rmtree(ended, ignore_errors=True)
        return True

    def _train(self, made: Path, out: Path, launch: Launch) -> bool:
        """Train in the folder `made`; whether there is a result. Without one the folder goes, unless it resumes."""
        if not self.resumes or not (made / recorded.NOTE).exists():  # without its note nobody knows what it is
            shutil.rmtree(made, ignore_errors=True)
        made.mkdir(parents=True, exist_ok=True)
        write_atomically(made / recorded.NOTE, json.dumps(self._identity(out), indent=1) + "\n")
        stays = self.resumes
        try:
            if attempt(self._in(made), made, launch):
                stays = self._is_result(schema.read(made))
                return stays
            return False
        finally:
            if not stays:
                shutil.rmtree(made, ignore_errors=True)

    def _is_result(self, record: Mapping[str, Any]) -> bool:
        """Whether a run that has ended is one that this study asks for; another place is named on stderr."""
        if not self.may_diverge and record["status"] == "diverged":
            return False
        wrong = "" if self.place is None else self.place.otherwise(record)
        if wrong:
            print(f"{self.label}: {wrong}", file=sys.stderr)
        return not wrong

    def _identity(self, out: Path) -> dict[str, Any]:
        """What its note says, and another composition's or place's would not."""
        place = {} if self.place is None else self.place.note
        return {"label": self.label, **place, "launch": shown(self.command(out))}

    def command(self, out: Path) -> Command:
        """Return the command that makes it below `out`."""
        return self._in(out / self.folder)

    def _in(self, folder: Path) -> Command:
        resuming = RESUMING if self.resumes else ()
        tool = [*self.tool, str(self.config), *self.overrides, f"output.dir={within(folder)}", *resuming]
        return [sys.executable, *tool] if self.place is None else self.place.on(tool)


def part_of(path: Path) -> Path:
    """The folder in which the run of this path is made."""
    return path.with_name(f".{path.name}.part")


def ended_of(made: Path) -> Path:
    """Where a run that was made in this folder lies from its end until it is a line of the results."""
    return made.with_suffix(".ended")


def _is_another(ended: Path, run: NotedRun) -> bool:
    """Whether a run lies there, and not only what is left of this one where a call stopped as it took it away."""
    whole = (ended / "record.json").is_file()
    return whole and bool(schema.read(ended)["seconds_total"] != run.record["seconds_total"])


def _is_free(made: Path) -> bool:
    """Whether no other process trains in this folder; one that does is named on stderr."""
    try:
        FolderLock(made).release()
    except UserError as error:
        print(error, file=sys.stderr)
        return False
    return True


def refuse_another(path: Path, note: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """UserError if the note of the run at `path` is another's than the wanted one's; of its launch, the settings
    count.
    """
    for key, value in wanted.items():
        known = note.get(key)
        if key == "launch":
            had, asked = settings(str(known)), settings(str(value))
            known, value = (
                " ".join(each for each in those if each not in other) for those, other in ((had, asked), (asked, had))
            )
        if known != value:
            raise UserError(
                f"{path}: {key} is {known!r}, and {value!r} is asked for; --again makes the run anew, --out names "
                "another folder"
            )


def settings(launch: str) -> list[str]:
    """The config and the words laid over it; where the run and its data lie, and how the cluster was made, are none."""
    words = next((launch.partition(f"{tool} ")[2] for tool in TOOLS if f"{tool} " in launch), "")
    told = (word.partition("=") for word in shlex.split(words) if word not in RESUMING)
    return [f"{key}{sign}{current(value)}" for key, sign, value in told if key not in ("output.dir", "data.root")]
