"""Try what a diagnosis suggests: two short runs launched as the record's was, one as it was, one with the change.

The record's own step is no measure for the second: the machine may be busier now, or less busy, than it was then.
"""

import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tomli_w

from suite.diagnose.causes import Finding
from suite.diagnose.evidence import Evidence
from suite.diagnose.launching import ROOT, launcher_of, run, without_interpreter
from wirebench.errors import UserError
from wirebench.record import schema

SETTLING = 16
"""Steps that a scheduler which weighs times may take before one counts (docs/schedulers.md)."""


class Trial(NamedTuple):
    """What a change was predicted to save, and what it saved.

    finding  whose change was tried; passed_over: names of more expensive ones, whose changes no setting makes
    shown    the command line, without what makes the run short; steps: that count
    before   seconds of a step of the short run as it was; after: with the change
    """

    finding: Finding
    passed_over: tuple[str, ...]
    shown: str
    steps: int
    before: float
    after: float

    @property
    def saved(self) -> float:
        """Seconds of a step; below 0 where the change made it slower."""
        return self.before - self.after


def attempt(evidence: Evidence, found: Sequence[Finding], folder: Path, steps: int) -> Trial | None:
    """Try the most expensive finding's change that is a setting; None where there is none.

    folder  of the run, in which the short runs are made and removed: every host of the job sees it
    Raises UserError where the record does not say how the run was launched, or a short run fails.
    """
    if evidence.under_way is not None:
        raise UserError("--try: this run is under way; another one would slow it down, and be slowed down")
    possible = [each for each in found if each.can_be_tried]
    if not possible:
        return None
    words, chosen = launcher_of(evidence.record), possible[0]
    if not words:
        raise UserError("--try: the record's environment.command does not say how train.py was launched")
    with tempfile.TemporaryDirectory(prefix=".tried-", dir=folder) as made:
        config = Path(made) / "config.toml"
        config.write_text(tomli_w.dumps(evidence.record["config"]), encoding="utf-8")
        short = [str(ROOT / "train.py"), str(config), *_short(evidence, steps)]
        before = _step([*words, *short, f"output.dir={made}/before"], Path(made) / "before", {})
        changed = [*_with_variables(words, chosen), *short, *chosen.settings]
        after = _step([*changed, f"output.dir={made}/after"], Path(made) / "after", chosen.variables)
    passed_over = tuple(each.name for each in found[: found.index(chosen)])
    shown = shlex.join([*_with_variables(words, chosen), "train.py", *chosen.settings])
    return Trial(chosen, passed_over, shown, steps, before, after)


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


def _with_variables(words: Sequence[str], finding: Finding) -> list[str]:
    """The launcher's words, with `env` in front of the program that it starts.

    Its own environment does not do everywhere: an emulated cluster tells its ranks their interface itself.
    """
    launcher, interpreter = without_interpreter(words)
    if not finding.variables or not interpreter:
        return [*launcher, *interpreter]
    return [*launcher, "env", *(f"{name}={value}" for name, value in finding.variables.items()), *interpreter]


def _step(command: Sequence[str], folder: Path, variables: Mapping[str, str]) -> float:
    """Median seconds of a step of the run that the command makes in `folder`."""
    code, said = run(command, variables)
    step = schema.read(folder)["step_seconds"]["median"] if code == 0 else None
    if step is None:
        print(f"+ {shlex.join(command)}", *said, sep="\n", file=sys.stderr)
        raise UserError(f"--try: a short run failed, with exit code {code}")
    return float(step)
