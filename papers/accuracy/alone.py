"""How long a step of every method computes: short runs, one by one, on a machine that does nothing else.

Losses come from whole runs, of which several may share a machine, so that their own times say nothing. The payload
of a method, and how often it sends, come from its whole runs.
"""

from collections.abc import Sequence
from pathlib import Path

from papers import trust
from papers.accuracy.curve import OWN, passes_seconds, phase_seconds
from papers.accuracy.modern import DENSE, OTHER_DENSE
from papers.accuracy.rows import MethodRuns, read
from papers.accuracy.task import Composition, Task, listed, words_of
from papers.page import Page
from wirebench.errors import UserError
from wirebench.record.notes import NotedRun
from wirebench.utils.markdown import table

SUFFIX = "_times"
"""A part's name is its task's with this suffix."""
STEPS = 35
"""Steps of a short run: five that are not counted, and a whole round of local steps."""
CHANGES = "compressor.freeze_step="
"""What begins with it sets a method of which steps late in a run do something else: that one runs to its end."""
_LENGTH, _WARMUP, _SEED = "train.max_steps=", "compressor.warmup=", "train.seed="


def alone(part: Task, names: Sequence[str] | None, density: float = 0.0) -> list[Composition]:
    """A short run of each method, or of those that are named; dense training's stands for all forms of it.

    UserError for a name that there is not, and where only another form of dense training is named.
    """
    found = []
    for each in listed(part, names):
        words = list(each.overrides)
        if not any(word.startswith(CHANGES) for word in words):
            words.append(f"{_LENGTH}{STEPS}")
        if any(word.startswith(_WARMUP) for word in words):
            words.append(f"{_WARMUP}[]")
        if each.label not in OTHER_DENSE:
            found.append(Composition(each.label, tuple(words)))
    if not found:
        raise UserError(f"--methods: {' and '.join(names or ())} computes as {DENSE} does; name that")
    return found


def timed(folder: Path, methods: Sequence[MethodRuns]) -> dict[str, NotedRun]:
    """By label, the run that was alone, of a task's folder and its methods; not such as break the rule of load.

    UserError for one of other settings than the method's whole runs, or of another machine.
    """
    beside = folder.with_name(f"{folder.name}{SUFFIX}")
    found = {run.note["label"]: run for run in read(beside) if trust.is_quiet(run)}
    for method in methods:
        if method.label in found:
            for run in method.runs:
                _refuse_another(beside, found[method.label], run)
    return found | ({label: found[DENSE] for label in OTHER_DENSE} if DENSE in found else {})


def page(folder: Path) -> Page | None:
    """The seconds by method; None where nothing has run."""
    runs = read(folder)
    return Page(folder, document(folder.name.removesuffix(SUFFIX), runs)) if runs else None


def document(task: str, runs: Sequence[NotedRun]) -> str:
    """The whole file."""
    rows = [
        [
            run.note["label"], f"{1e3 * passes_seconds(run):.1f}",
            *(f"{1e3 * phase_seconds(run, name):.2f}" for name in OWN), _others(run),
        ]
        for run in runs
    ]  # fmt: skip
    return "\n".join(
        [
            f"# The methods of today: a step's computing on {task}",
            "",
            f"Milliseconds of one worker, means over {STEPS - 5} steps, which are a whole round; of methods whose "
            "steps change as the run goes on, over a whole run. Several workers take turns on one core. On "
            f"{', '.join(dict.fromkeys(run.machine for run in runs))}; made by `wirebench study accuracy run`, "
            f"which runs `{runs[0].note['launch']}` and the like.",
            "",
            *table(
                ("method", "forward and backward pass", "update", "compressing", "cores busy with something else"), rows
            ),
            *trust.note({run.note["label"]: [run] for run in runs}, ""),
        ]
    )


def _others(run: NotedRun) -> str:
    return ", ".join(f"{each['others_cores']:.2f} of {each['cores']}" for each in run.has("load") or ()) or "-"


def _refuse_another(folder: Path, mine: NotedRun, run: NotedRun) -> None:
    """UserError where the short run has other settings than `run`, or another machine."""
    if mine.machine != run.machine:
        raise UserError(f"{folder}: {mine.folder.name} is of {mine.machine}, and {run.folder.name} of {run.machine}")
    ours, theirs = (_settings(each) for each in (mine, run))
    if ours is not None and theirs is not None and ours != theirs:
        other = ", ".join(sorted(ours ^ theirs))
        raise UserError(f"{folder}: {mine.folder.name} has other settings than {run.folder.name}: {other}")


def _settings(run: NotedRun) -> set[str] | None:
    return {word for word in words_of(run) if not word.startswith((_LENGTH, _WARMUP, _SEED))} or None
