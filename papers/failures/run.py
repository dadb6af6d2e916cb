"""Inject faults into jobs, lose and gain hosts, and save checkpoints: what each costs.

  wirebench study failures run --data FOLDER           all parts, into results/failures
  wirebench study failures run --parts elastic         360 trials of an elastic job, 30 of each kind: about 75 min
  wirebench study failures run --parts plain           60 trials of a job with checkpoints in its place: about 20 min
  wirebench study failures run --parts minutely        30 killed ranks, one a minute, of three methods: about 115 min
  wirebench study failures run --parts straggler       one of four hosts at half speed, three methods: about 15 min
  wirebench study failures run --parts worlds --data FOLDER    4 hosts, then 3, then 4, on both engines: about 30 min
  wirebench study failures run --parts checkpoints     VGG-16, one checkpoint every 50 steps: about 9 min
  wirebench study failures report                      afterwards: table.md and its figure

Parts and trials that are there are not made again. The machine should have nothing else to do. `worlds` needs root, to
give hosts names; FOLDER has CIFAR-10.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from papers.failures import checkpoints, stragglers, worlds
from papers.failures.faults import BESIDE, EACH, ELASTIC, FOLDER, MINUTELY, PLAIN
from papers.runner import RESULTS, WIREBENCH, Command, Launch, Part, measure
from papers.trainings import Training
from wirebench.chaos.campaign import Campaign
from wirebench.chaos.faults import FAULTS
from wirebench.chaos.job import JobSetting
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.rules import SEEDS

PARTS = ("elastic", "plain", "minutely", "straggler", "worlds", "checkpoints")
CHUNK = 3 * len(FAULTS)
"""Trials of one cell: three faults of each kind."""
KILLS, MINUTE = ("sigkill",), 60.0
MTBF_SECONDS = 10.0
"""Most faults take longer to recover from: the next then follows at once."""


@dataclass(frozen=True)
class Trials:
    """The trials of one file up to a number; method: of MINUTELY, whose ranks are killed and nothing else."""

    name: str
    count: int
    mtbf_seconds: float
    method: str = ""

    @property
    def label(self) -> str:
        """Name of the cell in messages."""
        return f"{self.method or self.name.removesuffix('.jsonl')}, {self.count} trials"

    def check(self) -> None:
        """Nothing can be wrong before a job begins."""

    def is_there(self, out: Path) -> bool:
        """Whether the file has them; UserError for a damaged one, and for another campaign's."""
        setting = JobSetting(elastic=self.name == ELASTIC, more=MINUTELY.get(self.method, ()))
        campaign = Campaign(setting, KILLS if self.method else tuple(FAULTS), self.mtbf_seconds, 0)
        return len(campaign.done(self.files(out)[0])[1]) >= self.count

    def files(self, out: Path) -> list[Path]:
        """Files with the trials."""
        return [(out / FOLDER / self.method if self.method else out) / self.name]

    def make(self, out: Path, launch: Launch, again: bool = False) -> bool:
        """Make the missing trials; a bound that they break is a result, too."""
        plain = ["--plain"] if self.name == PLAIN else []
        method = ["--kinds", *KILLS, "--set", *MINUTELY[self.method]] if self.method else []
        where = ["--out", str(self.files(out)[0].parent)]
        words = ["--trials", str(self.count), "--mtbf", f"{self.mtbf_seconds:g}", *plain, *method, *where]
        launch([*WIREBENCH, "chaos", *words])
        return self.is_there(out)


@dataclass(frozen=True)
class Worlds:
    """An engine's broken and unbroken run of a seed."""

    engine: str
    seed: int
    data: Path

    @property
    def label(self) -> str:
        """Name of the cell in messages."""
        return f"worlds, {self.engine}, seed {self.seed}"

    def check(self) -> None:
        """UserError where the data are not there, or the hosts cannot be."""
        if os.geteuid() != 0:
            raise UserError("the part worlds needs root, to give hosts names; --parts names others")
        if not self.data.is_dir():
            raise UserError(f"--data: {self.data} is no folder")

    def is_there(self, out: Path) -> bool:
        """Whether both are."""
        return all(recorded.at(path) for path in self.runs(out))

    def runs(self, out: Path) -> list[Path]:
        """Their paths."""
        names = [f"{worlds.label(self.engine, broken)}-{self.seed}" for broken in worlds.SIDES]
        return [out / worlds.FOLDER.name / name for name in names]

    def make(self, out: Path, launch: Launch, again: bool = False) -> bool:
        """Make what is missing."""
        anew = ["--again"] if self.is_there(out) else []
        command: Command = [sys.executable, "-m", "papers.failures.hosts", "--engine", self.engine, *anew]
        words = ["--seed", str(self.seed), "--data", str(self.data), "--out", str(out / worlds.FOLDER.name)]
        return launch([*command, *words]) == 0 and self.is_there(out)


@dataclass(frozen=True)
class CheckpointPart:
    """What checkpoints with a compressor's state cost."""

    compressor: str
    turns: int

    @property
    def label(self) -> str:
        """Name of the cell in messages."""
        return f"checkpoints, {self.compressor}"

    def check(self) -> None:
        """Nothing can be wrong."""

    def is_there(self, out: Path) -> bool:
        """Whether they were measured; UserError where that was with fewer turns."""
        path = checkpoints.file(out, self.compressor)
        found = next((each for each in checkpoints.load(out) if each.path == path), None)
        if found is not None and len(found.result["stalls"]) != self.turns:
            raise UserError(f"{path}: has {len(found.result['stalls'])} turns, not {self.turns}; --again makes it anew")
        return found is not None

    def files(self, out: Path) -> list[Path]:
        """The file with the measured cost."""
        return [checkpoints.file(out, self.compressor)]

    def make(self, out: Path, launch: Launch, again: bool = False) -> bool:
        """Measure."""
        path = checkpoints.file(out, self.compressor)
        path.parent.mkdir(parents=True, exist_ok=True)
        words = ["--model", checkpoints.MODEL, "--compressor", self.compressor, "--turns", str(self.turns)]
        return not launch([*WIREBENCH, "bench", "checkpoint", *words, "--json", str(path)]) and path.exists()


Cell = Trials | Worlds | CheckpointPart | Training


def flags(parser: argparse.ArgumentParser) -> None:
    """Which parts, and how much of each."""
    add = parser.add_argument
    add("--parts", nargs="+", choices=PARTS, metavar="PART", help=f"only these of {', '.join(PARTS)}")
    most = f"of each job ({EACH * len(FAULTS)}; {BESIDE * len(FAULTS)} for the part plain)"
    add("--trials", type=int, metavar="N", help=most)
    add("--mtbf", type=float, default=MTBF_SECONDS, metavar="S", help="mean seconds between faults (%(default)g)")
    add("--seeds", type=int, nargs="+", default=list(range(SEEDS)), help="of the runs of 4, 3, 4 hosts (0 1 2)")
    add("--turns", type=int, default=5, help="with and without a checkpoint, and a slow host (%(default)s)")
    add("--data", type=Path, metavar="FOLDER", help="of CIFAR-10, for the part worlds")
    add("--out", type=Path, default=RESULTS / "failures", metavar="FOLDER", help="where the results go")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """One part after the other; the labels of the cells that failed."""
    parts = options.parts or [part for part in PARTS if part != "worlds" or _can_make_worlds(options)]
    for name, least in (("trials", 1), ("turns", 2 if "checkpoints" in parts else 1)):
        if (got := getattr(options, name)) is not None and got < least:
            raise UserError(f"--{name}: must be at least {least}, got {got}")
    if options.data is None and "worlds" in parts:
        raise UserError("--data: the part worlds needs the folder of CIFAR-10; --parts names others")
    out = options.out.resolve()
    cells = [cell for part in parts for cell in _cells(part, options)]
    if options.again:
        _set_aside(out, cells)
    return measure({out: cells}, launch, options.again)


def _can_make_worlds(options: argparse.Namespace) -> bool:
    """Whether the part has what it needs; if not, this is printed. All other parts can be made without."""
    lacks = "--data FOLDER, the folder of CIFAR-10" if options.data is None else "root" if os.geteuid() else ""
    if lacks:
        print(f"worlds: left out: needs {lacks}", file=sys.stderr)
    return not lacks


def _set_aside(out: Path, cells: Sequence[Cell]) -> None:
    """Rename what was made before, so that all is made anew; UserError, and nothing is renamed, for what would fail."""
    for cell in cells:
        cell.check()
    try:
        for path in dict.fromkeys(
            path
            for cell in cells
            if isinstance(cell, Trials | CheckpointPart)
            for path in cell.files(out)
            if path.exists()
        ):
            with FileLock(path.with_suffix(".lock"), timeout=0):  # of a campaign that is under way
                path.rename(path.with_name(f"{path.name}.old"))
    except Timeout as error:
        raise UserError(f"{error.lock_file}: another call makes these trials now") from error


def series(quick: bool) -> list[Part]:
    """All parts; quick: a fault of each kind, and a turn with a slow host."""
    if quick:
        return [
            Part(4, ["--parts", "elastic", "--trials", str(len(FAULTS))]),
            Part(3, ["--parts", "straggler", "--turns", "1"]),
        ]
    times = {"elastic": 75, "minutely": 115, "straggler": 15, "plain": 20, "checkpoints": 9}
    parts = [Part(minutes, ["--parts", name]) for name, minutes in times.items()]
    if os.geteuid() != 0:
        print("failures: worlds is left out: needs root", file=sys.stderr)
        return parts
    return [*parts, Part(30, ["--parts", "worlds", "--data", "{data}"])]


def _cells(part: str, options: argparse.Namespace) -> Sequence[Cell]:
    if part == "worlds":
        return [Worlds(engine, seed, options.data) for engine in worlds.ENGINES for seed in options.seeds]
    if part == "checkpoints":
        return [CheckpointPart(name, options.turns) for name in checkpoints.COMPRESSORS]
    if part == "straggler":
        return list(stragglers.PART.trainings(Path(stragglers.FOLDER), stragglers.PLACE, options.turns, None))
    if part == "minutely":
        most = options.trials or EACH
        counts = [*range(10, most, 10), most]
        return [Trials(ELASTIC, count, MINUTE, method) for count in counts for method in MINUTELY]
    name, each = (ELASTIC, EACH) if part == "elastic" else (PLAIN, BESIDE)
    most = options.trials or each * len(FAULTS)
    return [Trials(name, count, options.mtbf) for count in [*range(CHUNK, most, CHUNK), most]]
