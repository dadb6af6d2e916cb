"""Try what a diagnosis suggests: interleaved short runs, unchanged and with each change, launched as the run was.

The record's own step is no baseline: a machine's speed drifts by more than some changes save. So every run with a
change is compared with the unchanged runs before and after its turn. The order of the changes is reversed from turn to
turn.
"""

import shlex
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w

from wirebench.diagnose.busy import busiest
from wirebench.diagnose.cause import Cause, Change, best_first
from wirebench.diagnose.evidence import Evidence
from wirebench.diagnose.launching import Started, run, started
from wirebench.errors import UserError
from wirebench.record import schema

SETTLING = 16
"""Steps that a scheduler which weighs times may take before one counts (docs/schedulers.md)."""


MOST = 2
"""Changes that are tried."""
TURNS = 3
"""Runs with each change; there is one more as it was."""


class Tried(NamedTuple):
    """A change that was tried.

    finding  the name of the one whose change it is
    shown    the command line, without what makes the run short
    afters   seconds of a step of the short runs with the change, one a turn
    saved    by turn, what a step of the runs as it was before and after the turn takes longer: seconds, below 0 where
             the change made it slower
    """

    finding: str
    change: Change
    shown: str
    afters: tuple[float, ...]
    saved: tuple[float, ...]

    @property
    def after(self) -> float:
        """Median seconds of a step with the change."""
        return statistics.median(self.afters)

    @property
    def saving(self) -> float:
        """Seconds of a step that it saved in the median turn: one that was disturbed does not count."""
        return statistics.median(self.saved)


class Attempt(NamedTuple):
    """What changes were predicted to save, and what they saved.

    tried    the best changes that a setting makes, the best first; passed_over: names of more expensive findings
             that have none
    steps    that count in a short run
    befores  seconds of a step of the short runs as it was: before the first turn, and after each
    busy     warnings about other programs on the machines during the short runs
    """

    tried: tuple[Tried, ...]
    passed_over: tuple[str, ...]
    steps: int
    befores: tuple[float, ...]
    busy: tuple[str, ...] = ()

    @property
    def before(self) -> float:
        """Median seconds of a step as it was."""
        return statistics.median(self.befores)


class Short(NamedTuple):
    """A short run to make: its command line without output.dir, and its variables.

    shown  the command line without what makes the run short
    """

    words: tuple[str, ...]
    variables: Mapping[str, str]
    shown: str = ""


def attempt(evidence: Evidence, found: Sequence[Cause], folder: Path, steps: int) -> Attempt | None:
    """Try the best changes, of all findings, that settings can make; None if there is no such change.

    folder  of the run, in which the short runs are made and removed: every host of the job sees it
    Raises UserError where the record does not say how the run was launched, or a short run fails.
    """
    if evidence.under_way is not None:
        raise UserError("--try: this run is under way; another one would slow it down, and be slowed down")
    name_of = {id(change): each.name for each in found for change in each.changes}
    possible = [change for each in found for change in each.changes if change.can_be_tried]
    chosen = best_first(possible)[:MOST]
    if not chosen:
        return None
    how = started(evidence.record)
    if how is None:
        raise UserError("--try: the record's environment.command does not say how train.py was launched")
    with tempfile.TemporaryDirectory(prefix=".tried-", dir=folder) as made:
        config = Path(made) / "config.toml"
        config.write_text(tomli_w.dumps(evidence.record["config"]), encoding="utf-8")
        ending = [str(config), *_short(evidence, steps)]
        changed = [_changed(how, ending, each) for each in chosen]
        befores, afters, busy = _in_turns(Short((*how.words({}), *ending), {}), changed, Path(made))
    tried = [
        Tried(name_of[id(change)], change, short.shown, *seconds)
        for change, short, seconds in zip(chosen, changed, afters, strict=True)
    ]
    having = [any(change.can_be_tried for change in each.changes) for each in found]
    return Attempt(tuple(tried), tuple(each.name for each in found[: having.index(True)]), steps, befores, busy)


Turns = tuple[tuple[float, ...], tuple[float, ...]]
"""Seconds of a step with a change, and the seconds that it saved, each by turn."""


def _in_turns(
    as_it_was: Short, changed: Sequence[Short], folder: Path
) -> tuple[tuple[float, ...], list[Turns], tuple[str, ...]]:
    """Seconds of a step as it was, the turns of each change, and which machines were busy meanwhile."""
    records = [_record(as_it_was, folder / "before-0")]
    befores = [_step(records[0])]
    afters: list[list[float]] = [[] for _ in changed]
    saved: list[list[float]] = [[] for _ in changed]
    for turn in range(TURNS):
        places = list(range(len(changed)))[:: 1 if turn % 2 == 0 else -1]
        for place in places:
            records.append(_record(changed[place], folder / f"after-{place + 1}-{turn}"))
            afters[place].append(_step(records[-1]))
        records.append(_record(as_it_was, folder / f"before-{turn + 1}"))
        befores.append(_step(records[-1]))
        for at, place in enumerate(places, 1):
            # As it was would have taken so long at that time, if the machine's speed has drifted evenly.
            drift = (befores[-1] - befores[-2]) * at / (len(places) + 1)
            saved[place].append(befores[-2] + drift - afters[place][-1])
    turns = [(tuple(each), tuple(less)) for each, less in zip(afters, saved, strict=True)]
    return tuple(befores), turns, busiest(records)


def _short(evidence: Evidence, steps: int) -> list[str]:
    """Settings for a run of `steps` counted steps that leaves nothing behind but its record."""
    config = evidence.record["config"]
    settings = {
        "train.max_steps": max(config["train"]["warmup_steps"], SETTLING) + steps,
        "train.eval_every": 0,
        "train.checkpoint_every_steps": 0,
        "train.checkpoint_every_epochs": 0,
        "output.tensorboard": "false",
        "output.trace_steps": 0,
    }
    if config["compressor"].get("warmup"):
        settings["compressor.warmup"] = (
            "[]"  # the density after it, and none where the change takes the compressor away
        )
    return [f"{key}={value}" for key, value in settings.items()]


def _changed(how: Started, ending: Sequence[str], change: Change) -> Short:
    """The run with the change, started as the run was."""
    words = (*how.words(change.variables), *ending, *change.settings)
    return Short(words, change.variables, shlex.join(how.shown(change.variables, change.settings)))


def _record(short: Short, folder: Path) -> dict[str, Any]:
    """The record of the run, which is made in `folder`; UserError where it fails or counts no step."""
    command = [*short.words, f"output.dir={folder}"]
    print(f"trying: {short.shown or 'as it was'}", file=sys.stderr, flush=True)
    code, said = run(command, short.variables)
    record = schema.read(folder) if code == 0 else None
    if record is None or record["step_seconds"]["median"] is None:
        print(f"+ {shlex.join(command)}", *said, sep="\n", file=sys.stderr)
        raise UserError(f"--try: a short run failed, with exit code {code}")
    return record


def _step(record: Mapping[str, Any]) -> float:
    """Median seconds of a step."""
    return float(record["step_seconds"]["median"])
