"""What the planner says of the methods' steps on a network, signed before any of them is run: predicted.json."""

import datetime
import sys
from dataclasses import dataclass
from pathlib import Path

from papers.prediction import signed
from papers.prediction.signed import Signed
from papers.runner import ROOT, Launch, within
from papers.today.emulated.order import HOSTS, METHODS, NETWORKS, compressor_of, trainings
from wirebench.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.planner import ranges
from wirebench.planner.resimulated import FromOutside, rates_of
from wirebench.record import recorded
from wirebench.telemetry import environment


@dataclass(frozen=True)
class Predicted:
    """The predictions as a cell of the study, after the measurement of how long compressors work.

    They are made once for a folder, also with --again: others would be younger than some of its runs.
    """

    part: str
    folder: Path
    label: str = signed.FILE

    def check(self) -> None:
        """UserError in a checkout that differs from its commit, which then signs nothing."""
        git = environment.git()
        if (git is None or git["dirty"]) and not (self.folder / signed.FILE).is_file():
            raise UserError(
                f"{self.folder / signed.FILE}: is signed with the commit that predicts; commit what was changed first"
            )

    def is_there(self, out: Path) -> bool:
        """Whether it was made; UserError where methods were run without it."""
        there = (out / signed.FILE).is_file()
        if not there and recorded.directly_below(out):
            raise UserError(f"{out}: has runs, and nothing was predicted before them; --out names another folder")
        return there

    def make(self, out: Path, launch: Launch) -> bool:
        """Predict all methods; UserError where that could not be signed any more."""
        if self.is_there(out):
            return True
        self.check()
        git = environment.git()
        assert git is not None
        out.mkdir(parents=True, exist_ok=True)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        steps = predict(self.part, out)
        signed.save(out, Signed(git["commit"], now, within(ranges.SHIPPED), steps))
        return True


def predict(part: str, folder: Path) -> dict[str, dict[str, float]]:
    """By method: seconds of its step, and their range; a method whose compressor was not timed is left out, and told.

    folder  of the part, which has the rates of this machine's compressors
    """
    rates, machine, errors = rates_of(folder), ranges.machine().processor, ranges.load()
    steps = {}
    for label in METHODS:
        [training] = trainings(part, [label], [0], ())
        resolved = resolve(loader.load(ROOT / training.config, list(training.overrides)))
        try:
            asked = FromOutside(loader.to_dict(resolved), HOSTS, NETWORKS[part].setting.link, 0.0, rates)
        except UserError as error:
            print(f"{label}: is not predicted: {error}", file=sys.stderr)
            continue
        low, high = asked.between(machine, errors.factors(rates.spread(compressor_of(label))))
        steps[label] = {"seconds": asked.seconds(machine), "low": low, "high": high}
    return steps
