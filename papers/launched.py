r"""A paper's experiments on a cluster of one's own: what `wirebench study NAME run --launch WORDS` runs.

WORDS start the ranks: horovodrun, torchrun, srun, mpirun, ... with their options. In them {ranks}, {hosts} (h1:2,h2:3)
and {nodes} are filled in for each layout of ranks on machines that the paper has, by --machines.

  wirebench study gs_sgd run --launch "horovodrun -np 4 -H h1:1,h2:1,h3:1,h4:1" --data FOLDER --out FOLDER --dry-run
  wirebench study flexreduce run --launch "horovodrun -np {ranks} -H {hosts}" --machines h1 h2 h3 --images FOLDER \
      --out FOLDER
  wirebench study gs_sgd report --cluster FOLDER

Runs that are there are not made again, and an interrupted training continues from its last epoch. Checkout and
Python are at the same path on every machine, and FOLDER of --out is one that this machine and rank 0's share.
"""

import argparse
import functools
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from papers.rows import alike, grouped, refuse_twice
from papers.runner import RESULTS, ROOT, Launch, measure, refuse_not_positive, shown, within
from papers.timings import Timing
from papers.trainings import RESUMING, TRAIN, Composition, Launched, OwnCluster, Training, TrainingPlace, part_of
from wirebench.comm.host_list import parse_words, written
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.record import recorded
from wirebench.record.notes import NotedRun
from wirebench.record.rules import TURNS
from wirebench.topology.tree import Topology
from wirebench.utils.names import suggest

CIFAR10 = "cifar-10-batches-bin"
FILLED = ("{ranks}", "{hosts}", "{nodes}")
INPUTS = {"data": f"folder that has {CIFAR10}", "images": "folder that has train/CLASS and val/CLASS"}
RESERVED = (
    "train.seed", "data.root", "output.dir", "model.name", "compressor.name", "scheduler.name", "collective.name",
    *(word.partition("=")[0] for word in RESUMING),
)  # fmt: skip
FEW = ("train.max_steps=200", "train.warmup_steps=50", "train.eval_every=0")
"""Overrides of runs whose steps are timed."""


@dataclass(frozen=True)
class Trained:
    """Trainings of an experiment: compositions that stand in one table.

    about        tables and figures of the paper; "" for runs on emulated hosts
    rows         config and overrides, by label; shared: overrides of all; repeats: runs of each row
    seeds        whether a repeat is another seed, a whole training that resumes; else the rows take turns
    layouts      ranks on each machine, of every world that the paper has; none: whatever the launch has
    needs        which of INPUTS the data lies in; "": none
    keeps        files beside record and config that stay; on emulated hosts files of the first turn
    here         the emulated cluster; None: a cluster of one's own
    folder       of the runs on emulated hosts, below results/
    between      what stands for a space in the names of runs
    may_diverge  whether a run that diverged is a result
    tool         the words of the command that trains
    """

    about: str
    rows: Mapping[str, Composition]
    shared: tuple[str, ...] = ()
    repeats: int = TURNS
    seeds: bool = False
    layouts: tuple[str, ...] = ()
    needs: str = ""
    keeps: tuple[str, ...] = ()
    here: OwnCluster | None = None
    folder: str = ""
    between: str = "_"
    may_diverge: bool = True
    tool: tuple[str, ...] = (TRAIN,)

    def trainings(
        self,
        where: Path,
        place: TrainingPlace,
        repeats: int | None,
        labels: Sequence[str] | None,
        more: Sequence[str] = (),
    ) -> Iterator[Training]:
        """The runs in their order, named below `where`.

        repeats  of each row; None: the part's own
        labels   of these rows alone; more: further overrides
        """
        rows = [row for row in self.rows.items() if labels is None or row[0] in labels]
        order = [(row, each) for row in rows for each in range(self.repeats if repeats is None else repeats)]
        # What is timed takes turns; the seeds of a row follow each other, so that its row is whole before the next.
        for (label, (config, overrides)), repeat in order if self.seeds else sorted(order, key=lambda each: each[1]):
            seed = (f"train.seed={repeat}",) if self.seeds else ()
            words = {word.partition("=")[0]: word for word in (*overrides, *self.shared, *seed, *more)}
            name = label.replace(", ", "-").replace(" ", self.between).replace("%", "percent")
            yield Training(
                str(where / f"{name}-{repeat}"), label, place, Path(config), tuple(words.values()),
                self.keeps if self.here is None or not repeat else (), self.may_diverge,
                self.seeds and self.tool == (TRAIN,), tool=self.tool,
            )  # fmt: skip


@dataclass(frozen=True)
class Timed:
    """All-reduces of a paper's experiment, on each of its layouts; about: its tables and figures."""

    about: str
    collectives: tuple[str, ...]
    sizes: tuple[str, ...]
    layouts: tuple[str, ...]
    seconds: float = 25.0
    needs: str = ""


Parts = Mapping[str, Trained | Timed]
"""A study's ON_CLUSTER, in its run.py: what a cluster runs, by name."""


def flags(parser: argparse.ArgumentParser, parts: Parts) -> None:
    """Where and what is run."""
    add = parser.add_argument
    add("--launch", required=True, metavar="WORDS", help="what starts the ranks: 'horovodrun -np 4 -H h1:2,h2:2'")
    add("--machines", nargs="+", default=[], metavar="HOST", help="names that {hosts} is filled in with")
    add("--layouts", nargs="+", metavar="LAYOUT", help="ranks on each machine, such as 2+3 (the paper's)")
    add(
        "--parts", nargs="+", choices=list(parts), default=list(parts), metavar="NAME", help=f"{', '.join(parts)} (all)"
    )
    add("--rows", nargs="+", metavar="LABEL", help="of trainings: 'resnet20 dense', ... (all of a part)")
    for name, about in INPUTS.items():
        if any(part.needs == name for part in parts.values()):
            add(f"--{name}", metavar="FOLDER", help=about)
    add("--link", default="", metavar="RATE", help="rate of every machine's link, for claims that depend on it: 1gbit")
    add("--repeats", type=int, metavar="N", help="turns or seeds of each row (the part's own)")
    add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="further settings, of all trainings")
    add("--sizes", nargs="+", metavar="SIZE", help="of all-reduces; 60kf is 60,000 floats (the part's own)")
    add("--seconds", type=float, help="time for a size of all-reduces (the part's own)")
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where all-reduces have their numbers (%(default)s)")
    add("--out", type=Path, required=True, metavar="FOLDER", help="where the results go")
    add("--dry-run", action="store_true", help="print every command, run none")


def run(parts: Parts, options: argparse.Namespace, launch: Launch) -> list[str]:
    """Make the runs that are not there yet, or print their commands; the labels of those that failed."""
    out, program = options.out.resolve(), words_of(options.launch)[:1]
    chosen = {name: part for name, part in parts.items() if name in options.parts}
    _refuse_unusable(chosen, options)
    options.machines = _machines(options.machines)
    if out.is_relative_to(RESULTS):
        raise UserError(f"--out: {out} lies in the study's own results; name another folder")
    refuse_rows(options.rows, chosen.values())
    runs = [each for name, part in chosen.items() for each in planned(name, part, options)]
    if options.again and not options.dry_run:
        for each in runs:
            if isinstance(each, Training):  # what is made anew goes on with nothing
                folder = out / each.folder
                shutil.rmtree(part_of(folder), ignore_errors=True)
    if not runs:
        raise UserError(f"--parts: nothing is left of {', '.join(chosen)}")
    if not options.dry_run:
        if shutil.which(program[0]) is None:
            raise UserError(f"--launch: {program[0]}: is no command here")
        return measure({out: runs}, launch, options.again)
    for each in runs:
        each.check()
        print(shown(each.command(out)))
    return []


def planned(name: str, part: Trained | Timed, options: argparse.Namespace) -> Iterator[Training | Timing]:
    """Yield the runs of a part, in their order; none where it lacks its data or its machines, which is printed."""
    folder = getattr(options, part.needs) if part.needs else None
    if part.needs and folder is None and not options.dry_run:
        print(f"left out without --{part.needs}: {name}", file=sys.stderr)
        return
    for place in places(name, part.layouts, options):
        if isinstance(part, Timed):
            seconds = part.seconds if options.seconds is None else options.seconds
            sizes = tuple(options.sizes or part.sizes)
            yield Timing(place.layout or name, place, part.collectives, sizes, seconds, options.device)
        else:
            where = Path(name, place.layout) if len(part.layouts) > 1 else Path(name)
            data = (f"data.root={_absolute(folder or 'FOLDER')}",) if part.needs else ()
            yield from part.trainings(where, place, options.repeats, options.rows, (*data, *options.set))


def places(name: str, layouts: Sequence[str], options: argparse.Namespace) -> Iterator[Launched]:
    """Where a part runs: once with the unchanged words, or on each layout; UserError where words cannot do it."""
    wanted = list(dict.fromkeys(options.layouts or layouts))
    words = words_of(options.launch)
    if not any(each in options.launch for each in FILLED):
        if options.machines:
            raise UserError(f"--machines: --launch has none of {', '.join(FILLED)} to be filled in")
        if len(wanted) > 1:
            raise UserError(
                f"--launch: {name} has {len(wanted)} layouts, {', '.join(wanted)}: write {{ranks}} and {{hosts}} and "
                "name --machines, or say by --layouts which one this is"
            )
        yield Launched(words, next(iter(wanted), ""), options.link)
        return
    if not options.machines:
        raise UserError("--machines: --launch has something to fill in: which machines are there?")
    for layout in wanted or ["+".join("1" for _ in options.machines)]:
        ranks = [len(machine) for machine in Topology.parse(layout).machines]
        if len(ranks) > len(options.machines):
            print(f"left out, needs {len(ranks)} machines: {name} on {layout}", file=sys.stderr)
            continue
        hosts = written(dict(zip(options.machines, ranks, strict=False)))
        filled = dict(zip(FILLED, (str(sum(ranks)), hosts, str(len(ranks))), strict=True))
        yield Launched(tuple(_filled(word, filled) for word in words), layout, options.link)


def words_of(launch: str) -> tuple[str, ...]:
    """The words of --launch; UserError for none, or for quotes that are not closed."""
    try:
        words = tuple(shlex.split(launch))
    except ValueError as error:
        raise UserError(f"--launch: {launch!r}: {error}") from error
    if not words:
        raise UserError("--launch: has no words")
    for name in re.findall(r"\{\w*\}", launch):
        if name not in FILLED:
            raise UserError(f"--launch: {name}: is none of {', '.join(FILLED)}")
    return words


def _refuse_unusable(parts: Parts, options: argparse.Namespace) -> None:
    """UserError for what nothing would read, and for settings that the rows themselves have."""
    refuse_not_positive(options, "repeats", "seconds")
    timed = [part for part in parts.values() if isinstance(part, Timed)]
    for name in ("sizes", "seconds", "device"):
        if not timed and getattr(options, name) not in (None, "cpu"):
            raise UserError(f"--{name}: {', '.join(parts)} times no all-reduces")
    refuse_set(options.set, {*RESERVED, *rows_keys(parts.values())}, ", ".join(parts))


def _machines(words: Sequence[str]) -> list[str]:
    """The names that --machines lists, node[1-4] too; UserError for ranks among them, and for a name twice."""
    try:
        hosts = parse_words(words)
    except UserError as error:
        raise UserError(f"--machines: {error}") from error
    if ranked := [host.word for host in hosts if host.slots is not None]:
        raise UserError(f"--machines: {ranked[0]!r}: names alone; their ranks are the layout's")
    return [host.name for host in hosts]


def refuse_rows(asked: Sequence[str] | None, parts: Iterable[Trained | Timed]) -> None:
    """UserError for a label of --rows that no part has."""
    labels = list(dict.fromkeys(row for part in parts if isinstance(part, Trained) for row in part.rows))
    for label in asked or ():
        if label not in labels:
            raise UserError(
                f"--rows: no {label!r}; {suggest(label, labels) if labels else 'these parts train nothing'}"
            )


def refuse_set(words: Sequence[str], own: Collection[str], names: str) -> None:
    """UserError where --set gives a key twice, or one of `own`, which the runs of `names` set themselves."""
    given = [word.partition("=")[0] for word in words]
    for key in given:
        if given.count(key) > 1:
            raise UserError(f"--set: {key}: is given twice")
        if key in own:
            raise UserError(f"--set: {key}: is what the runs of {names} differ in, or where they lie")


def refuse_no_cifar10(folder: Path | None) -> None:
    """UserError for a --data without CIFAR-10."""
    if folder is not None and not (folder / CIFAR10).is_dir():
        raise UserError(f"--data: {folder}: has no {CIFAR10}")


def rows_keys(parts: Iterable[Trained | Timed], labels: Collection[str] | None = None) -> set[str]:
    """Keys that a row has of its own; labels: of these rows alone."""
    trained = [part for part in parts if isinstance(part, Trained)]
    rows = [row for part in trained for label, row in part.rows.items() if labels is None or label in labels]
    return {word.partition("=")[0] for _, words in rows for word in words}


ByModel = dict[str, dict[str, tuple[NotedRun, ...]]]
"""Runs by their model and by their label."""


class ClusterRuns(NamedTuple):
    """What --cluster of a report names: runs whose steps were timed, and whole trainings."""

    timed: ByModel
    trained: ByModel


def on_cluster(
    folder: Path | None, model_of: Callable[[NotedRun], str | None], label_of: Callable[[NotedRun], str], what: str
) -> ClusterRuns:
    """The finished runs below `folder`, none for None; of a model those of the most common setting.

    model_of  None for a run that the paper says nothing of
    what      is missing, in the UserError for a folder without such a run
    """
    finished = recorded.finished(folder) if folder is not None else []
    known = [(model, run) for run in finished if (model := model_of(run)) is not None]
    if folder is not None and not known:
        raise UserError(f"--cluster: {folder}: has no finished run of {what}")
    sides: list[ByModel] = []
    for whole in (False, True):
        sides.append({})
        for model in dict.fromkeys(model for model, run in known if run.is_whole is whole):
            runs = [run for each, run in known if each == model and run.is_whole is whole]
            sides[-1][model] = grouped(alike(runs), label_of)
            for label, those in sides[-1][model].items():
                refuse_twice(f"{model}, {label}", those)
    return ClusterRuns(*sides)


def matches(run: NotedRun, composition: Composition) -> bool:
    """Whether the run's own config has the model and the compressor of a row, warm-up or not."""
    config, overrides = composition
    return _told(run.record["config"]) == _wanted(config, tuple(overrides))


@functools.cache
def _wanted(config: str, overrides: tuple[str, ...]) -> list[dict[str, Any]]:
    return _told(loader.to_dict(resolve(loader.load(ROOT / config, overrides))))


def _told(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Few steps are timed without a warm-up, whose density they would have."""
    return [{key: each for key, each in config[name].items() if key != "warmup"} for name in ("model", "compressor")]


def _filled(word: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def _absolute(folder: str) -> str:
    return folder if folder == "FOLDER" else within(Path(folder).resolve())
