"""Try what a diagnosis suggests: short runs launched as the record's was, one as it was, one with each change.

The record's own step is no measure for the others: the machine may be busier now, or less busy, than it was then.
"""

import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tomli_w

from wirebench.diagnose.evidence import Evidence
from wirebench.diagnose.finding import Change, Finding, best_first
from wirebench.diagnose.launching import launcher_of, run, training, without_interpreter
from wirebench.errors import UserError
from wirebench.record import schema

SETTLING = 16
"""Steps that a scheduler which weighs times may take before one counts (docs/schedulers.md)."""


MOST = 2
"""Changes that are tried."""


class Tried(NamedTuple):
    """A change that was tried.

    finding  the name of the one whose change it is
    shown    the command line, without what makes the run short
    after    seconds of a step of the short run with the change
    """

    finding: str
    change: Change
    shown: str
    after: float


class Trial(NamedTuple):
    """What changes were predicted to save, and what they saved.

    tried   the best changes that a setting makes, the best first; passed_over: names of more expensive findings
            that have none
    steps   that count in a short run
    before  seconds of a step of the short run as it was
    """

    tried: tuple[Tried, ...]
    passed_over: tuple[str, ...]
    steps: int
    before: float

    def saved(self, tried: Tried) -> float:
        """Seconds of a step; below 0 where the change made it slower."""
        return self.before - tried.after


def attempt(evidence: Evidence, found: Sequence[Finding], folder: Path, steps: int) -> Trial | None:
    """Try the best changes of all findings that settings make; None where there is none.

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
    words = launcher_of(evidence.record)
    if not words:
        raise UserError("--try: the record's environment.command does not say how train.py was launched")
    tried = []
    with tempfile.TemporaryDirectory(prefix=".tried-", dir=folder) as made:
        config = Path(made) / "config.toml"
        config.write_text(tomli_w.dumps(evidence.record["config"]), encoding="utf-8")
        short = [*training(words), str(config), *_short(evidence, steps)]
        before = _step([*words, *short, f"output.dir={made}/before"], Path(made) / "before", {})
        for number, change in enumerate(chosen, 1):
            launcher, target = _with_variables(words, change), Path(made) / f"after-{number}"
            changed = [*launcher, *short, *change.settings, f"output.dir={target}"]
            shown = shlex.join([*launcher, "train.py", *change.settings])
            tried.append(Tried(name_of[id(change)], change, shown, _step(changed, target, change.variables)))
    having = [any(change.can_be_tried for change in each.changes) for each in found]
    return Trial(tuple(tried), tuple(each.name for each in found[: having.index(True)]), steps, before)


def _short(evidence: Evidence, steps: int) -> list[str]:
    """The settings of a run of so many counted steps that leaves nothing behind but its record."""
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


def _with_variables(words: Sequence[str], change: Change) -> list[str]:
    """The launcher's words, with `env` in front of the program that it starts.

    Its own environment does not do everywhere: an emulated cluster tells its ranks their interface itself.
    """
    launcher, interpreter = without_interpreter(words)
    if not change.variables or not interpreter:
        return [*launcher, *interpreter]
    return [*launcher, "env", *(f"{name}={value}" for name, value in change.variables.items()), *interpreter]


def _step(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> float:
    """Median seconds of a step of the run that the command makes in `folder`."""
    code, said = run(command, variables)
    step = schema.read(folder)["step_seconds"]["median"] if code == 0 else None
    if step is None:
        print(f"+ {shlex.join(command)}", *said, sep="\n", file=sys.stderr)
        raise UserError(f"--try: a short run failed, with exit code {code}")
    return float(step)
