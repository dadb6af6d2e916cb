"""Train over several seeds: every compressor on CIFAR-10, and the methods of 2022 to 2026 on a GPT and a ResNet.

  wirebench study accuracy run --data FOLDER                       all tasks: about 36 h on two quiet cores
  wirebench study accuracy run                                     without those that read CIFAR-10
  wirebench study accuracy run --data FOLDER --task quick --methods dense topk gs_sgd
  wirebench study accuracy run --task gpt --methods dense demo dion --seeds 0
  wirebench study accuracy run --task gpt_rates                    other learning rates, one seed
  wirebench study accuracy run --task gpt_times                    short runs that have the machine for themselves
  wirebench study accuracy run --task gpt_0.1m_search              rates of every method, on the validation split
  wirebench study accuracy run --task gpt_0.1m_20 gpt_0.1m_2       the same GPT at 20 and at 2 tokens a parameter
  wirebench study accuracy run --task gpt_0.3m_20 --dry-run        how long it takes, by the cells that are there
  wirebench study accuracy run --task gpt_0.1m_formats_4           losses by wire format, on 4 workers
  wirebench study accuracy report                                  the tables and the figures, without training

quick is a narrow ResNet-8 on images of 16 x 16 pixels, and resnet20 ResNet-20 on whole images, both with every
compressor. gpt and resnet have the methods of today. A seed's methods lie together: whatever stops the study, the
methods that are there can be compared. A run that is there already is not repeated, nor one that diverged. An
interrupted one continues from its last epoch: start it again as often as you like. Runs of other settings want another
--out. A training uses one core: the same call may run twice side by side, but for tasks that time steps. Both share its
cells. A search tries rates until no best one is at an end, then tasks that wait for rates run. A task that has none of
the methods that are named is left out.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from papers.accuracy import classics, formats, modern, plan, report, rows, sizes
from papers.accuracy.curve import curve_of
from papers.accuracy.task import Task
from papers.accuracy.tasks import AT_SEARCHED_RATES, CURVES, GPT, TASKS, USUAL
from papers.launched import CIFAR10, refuse_no_cifar10, refuse_set
from papers.runner import RESULTS, ROOT, Launch, Part, measure, within
from papers.trainings import Training
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.record import schema
from wirebench.record.notes import refuse_mixed


def flags(parser: argparse.ArgumentParser) -> None:
    """Flags for what is trained, for how long, and where."""
    add = parser.add_argument
    add("--data", type=Path, metavar="FOLDER", help=f"folder that has {CIFAR10}; without it: no task that reads it")
    add("--task", nargs="+", choices=list(TASKS), metavar="TASK", default=list(USUAL), help=f"what is learned: "
        f"{', '.join(TASKS)} (all that were made for today's methods and the classics)")  # fmt: skip
    add("--methods", nargs="+", metavar="NAME", help="dense, 'gs_sgd literal', demo, ... (all of the task)")
    add("--seeds", nargs="+", type=int, metavar="SEED", help="one run of each method for each (the task's: 0, 1, ...)")
    add("--density", type=float, default=0.01, help="of sparse methods on CIFAR-10 (%(default)s)")
    add("--steps", type=int, default=0, metavar="N", help="end every run after N steps, to try the study (0: run on)")
    add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="further settings, of all methods")
    add("--out", type=Path, default=RESULTS, metavar="FOLDER", help="for example FOLDER/today/gpt (results)")
    add("--dry-run", action="store_true", help="say how long each task takes, by the cells that are there; train none")


def run(options: argparse.Namespace, launch: Launch) -> list[str]:
    """All runs that are not there yet, task by task, and the report of all that are there.

    What a search finds decides which runs there are: they are listed again until there is no other one.
    """
    tasks, listed, failed = chosen(options), set[Path](), list[str]()
    while True:
        new = [(task, [each for each in planned(options, task) if _path(options, task, each) not in listed])
               for task in tasks]  # fmt: skip
        new = [(task, those) for task, those in new if those]
        if not new:
            return list(dict.fromkeys(failed))
        trainings = {(options.out / task.folder).resolve(): those for task, those in new}
        for out, those in trainings.items():
            _refuse_others(out, those)
        print(*plan.lines(new, options.out, options.again), sep="\n", file=sys.stderr)
        if options.dry_run:
            return []
        failed += measure(trainings, launch, options.again, _show)
        for out in trainings:
            _show(out)
        listed |= {_path(options, task, each) for task, those in new for each in those}
        tasks = _with_methods(options, _given(options))


def _path(options: argparse.Namespace, task: Task, training: Training) -> Path:
    return Path(options.out, task.folder, training.folder)


def _show(out: Path) -> None:
    """Write the report of a task's runs, if there are any."""
    page = report.page(out)
    if page is not None:
        page.write()
        print(f"table: {within(page.path)}", file=sys.stderr)


def series(quick: bool) -> list[Part]:
    """All tasks; quick: a few steps of two methods of the GPT, with half its layers, and of a few on images."""
    if not quick:
        return [
            Part(15.0 * 60, ["--task", "gpt", "gpt_rates", "gpt_times"]),
            Part(
                21.3 * 60, ["--task", "resnet", "resnet_rates", "resnet_times", "quick", "resnet20", "--data", "{data}"]
            ),
        ]
    short = ["--seeds", "0", "--steps", "30", "--set", "model.depth=2", "--methods", *modern.QUICK]
    by_format = ["--seeds", "0", "--steps", "30", "--methods", *formats.QUICK]
    few = ["--steps", "60", "--set", "train.epochs=1", "--seeds", "0", "1", "2", "--methods", *classics.QUICK]
    return [
        Part(2, ["--task", GPT.name, *short]),
        Part(3, ["--task", "digits"]),
        Part(3, ["--data", "{data}", "--task", "quick", *few]),
        Part(1, ["--data", "{data}", "--task", "resnet_formats_4", *by_format]),
    ]


def chosen(options: argparse.Namespace) -> list[Task]:
    """The tasks that have their data and one of the methods that are named; others are named on stderr.

    UserError where none has, and for a method that no task has.
    """
    refuse_no_cifar10(options.data)
    given = _given(options)
    left_out = ", ".join(name for name in options.task if TASKS[name] not in given)
    if not given:
        raise UserError(f"--data: which folder has the {CIFAR10} of {left_out}?")
    if left_out:
        print(f"left out without --data: {left_out}", file=sys.stderr)
    for name in options.methods or ():
        # What waits for a rate has a name already.
        waits = any(name in task.settings for task in given if task in AT_SEARCHED_RATES)
        if not waits and not any(task.known([name], options.density) for task in given):
            given[0].methods(given[0], [name], options.density)  # which says why
    found = _with_methods(options, given)
    without = [task for task in given if task not in found]
    if waiting := [task.name for task in without if task in AT_SEARCHED_RATES]:
        print(f"no rates yet, first a search: {', '.join(waiting)}", file=sys.stderr)
    if others := [task.name for task in without if task not in AT_SEARCHED_RATES]:
        print(f"left out without one of the methods: {', '.join(others)}", file=sys.stderr)
    if not found:
        raise UserError(f"--task: {waiting[0]}: no method has a rate; --task also names its search, gpt_..._search")
    return found


def _given(options: argparse.Namespace) -> list[Task]:
    """The tasks that are named and have their data; UserError for an --out in which no rates are looked for."""
    asked = [TASKS[name] for name in options.task]
    if any(task in AT_SEARCHED_RATES for task in asked) and options.out.resolve() != sizes.RESULTS.resolve():
        where = sizes.RESULTS.resolve()
        raise UserError(f"--out: rates are read below {where}; the variable WIREBENCH_RESULTS names another folder")
    return [task for task in asked if options.data is not None or not task.data]


def _with_methods(options: argparse.Namespace, tasks: Sequence[Task]) -> list[Task]:
    return [task for task in tasks if task.known(options.methods, options.density)]


def planned(options: argparse.Namespace, task: Task) -> list[Training]:
    """Every run of a task that the command line asks for, whether it is there or not; UserError for a mistake in it."""
    if not 0 < options.density <= 1:
        raise UserError(f"--density: lies in (0, 1], got {options.density:g}")
    if options.steps < 0:
        raise UserError(f"--steps: is positive, or 0 for whole runs, got {options.steps}")
    seeds = options.seeds or []
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds: one is given twice: {' '.join(map(str, seeds))}")
    more = (*([f"train.max_steps={options.steps}"] if options.steps else []), *options.set)
    data = (f"data.root={options.data}",) if task.data else ()
    methods = task.known(options.methods, options.density)
    own = {word.partition("=")[0] for method in methods for word in method.overrides}
    refuse_set(options.set, {"train.seed", "data.root", "output.dir", *own}, task.name)
    return [
        Training(
            f"{method.label.replace(' ', '-')}-{seed}", method.label, task.place, Path(task.config),
            (*task.words(method, seed, more), *data), resumes=task.place is None,
            about={"seed": seed, "density": method.density, "task": task.name,
                   "epochs": task.composed(method, seed, more).train.epochs},
            reads=_traced if task in CURVES else None,
        )
        for seed in seeds or range(max(method.seeds or task.seeds for method in methods))
        for method in methods
        if seeds or seed < (method.seeds or task.seeds)
    ]  # fmt: skip


def _traced(made: Path) -> dict[str, Any]:
    """The loss of a run on the way, by bytes."""
    record = schema.read(made)
    # The history ends with the last whole epoch, which is not where a run ends that diverged.
    last = record["history"][-1] if record["status"] == "finished" and record["history"] else {}
    return curve_of(made / "steps.jsonl", last.get("wire_bytes_total"))


def _refuse_others(out: Path, trainings: Sequence[Training]) -> None:
    """UserError where runs that are there have other settings than those to come."""
    own = {key for task in TASKS.values() if out.name == task.name for key in task.own}
    known = rows.settings(rows.read(out))
    density = next((each.about["density"] for each in trainings if each.about["density"] is not None), None)
    config = loader.load(ROOT / trainings[0].config, list(trainings[0].overrides))
    # On hosts the launcher decides how many workers there are, so the config has none.
    given = rows.settings_of(loader.to_dict(config)) | {"workers": config.engine.workers or None}
    known["this call"] = {**given, "density": density}
    alike = {name: {key: value for key, value in each.items() if key not in own} for name, each in known.items()}
    try:
        refuse_mixed(out, alike)
    except UserError as error:
        raise UserError(f"{error}; --out names another folder") from error
