"""Runs of a folder beside those of FOLDER-again, the same compositions another time on the same kind of machine.

Steps of one run say how steady that run was (repeats.py). Whether a machine repeats itself shows where a run is made
again: schedulers that weigh times may cut the gradient otherwise, and what ranks wait for each other may differ.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scipy.stats import kendalltau

from suite.studies.notes import machine_of
from suite.studies.prediction.measured import NEAR, Predicted, collect, near
from suite.studies.prediction.repeats import STEADY
from wirebench.errors import UserError

SUFFIX = "-again"
"""Of the folder's name."""
HEAD = ("another time ms",)


class AnotherTime(NamedTuple):
    """Both times of the compositions that were run twice.

    name    of the other time's folder
    steps   seconds of the step this time and the other time, by the run's name
    steady  names of the runs whose steps repeat themselves to STEADY, by what either run itself can tell
    """

    name: str
    steps: dict[str, tuple[float, float]]
    steady: frozenset[str]

    @property
    def agreeing(self) -> set[str]:
        """Names of the runs whose two steps lie within STEADY of each other."""
        return {name for name, both in self.steps.items() if max(both) <= (1 + STEADY) * min(both)}

    def cells(self, name: str) -> list[str]:
        """Of the table."""
        return [f"{1e3 * self.steps[name][1]:.2f}" if name in self.steps else "-"]

    def said(self) -> str:
        """How far the two times lie apart, in a sentence."""
        first, second = zip(*self.steps.values(), strict=True)
        apart = [max(both) / min(both) - 1 for both in self.steps.values()]
        order = kendalltau(first, second).statistic
        return (
            f"{len(self.steps)} of these runs were made another time ({self.name}): the two steps of "
            f"{len(self.agreeing)} lie within {100 * STEADY:.0f} % of each other, half of all within "
            f"{100 * statistics.median(apart):.1f} %, all within {100 * max(apart):.0f} %; Kendall's tau of the two "
            f"times' order is {order:.2f}. {len(self.agreeing & self.steady)} of those repeat themselves to "
            f"{100 * STEADY:.0f} % within either run, too."
        )

    def judged(self, errors: Mapping[str, float]) -> str:
        """How near predictions come where steps repeat themselves in both ways; "" for none. errors: by name"""
        chosen = {name: error for name, error in errors.items() if name in self.agreeing & self.steady}
        if len(chosen) <= 1:
            return ""
        worst = max(chosen, key=lambda name: abs(chosen[name]))
        measured = [self.steps[name][0] for name in chosen]
        predicted = [(1 + error) * seconds for error, seconds in zip(chosen.values(), measured, strict=True)]
        return (
            f"Of the {len(chosen)} that repeat themselves within runs and from one to the other "
            f"{sum(map(near, chosen.values()))} predictions are within {100 * NEAR:.0f} %, the mean error is "
            f"{100 * statistics.fmean(map(abs, chosen.values())):.1f} %, the largest {100 * chosen[worst]:+.1f} % "
            f"({worst}), and Kendall's tau of their order {kendalltau(predicted, measured).statistic:.2f}."
        )


def is_repeat(folder: Path) -> bool:
    """Whether its runs are another folder's, made another time."""
    return folder.resolve().name.endswith(SUFFIX)


def find(folder: Path, runs: Sequence[Predicted]) -> AnotherTime | None:
    """The runs beside those of the other folder; None where there is none; UserError where it is another machine's."""
    here = folder.resolve()
    other = here.with_name(here.name.removesuffix(SUFFIX) if is_repeat(here) else here.name + SUFFIX)
    machines = machine_of(here), machine_of(other) if other.is_dir() else None
    if machines[1] is None:
        return None
    if machines[0] != machines[1]:
        raise UserError(f"{other}: has runs of {machines[1]}, and {here.name} of {machines[0]}: none is another's time")
    there = {each.name: each for each in collect(other)}
    twice = [(each, there[each.name]) for each in runs if each.name in there]
    steady = {one.name for one, two in twice if all((each.repeats or 1.0) <= STEADY for each in (one, two))}
    steps = {one.name: (one.seconds, two.seconds) for one, two in twice}
    return AnotherTime(other.name, steps, frozenset(steady)) if len(steps) > 1 else None
