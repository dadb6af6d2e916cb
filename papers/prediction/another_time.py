"""Runs of a folder beside the runs of FOLDER-again, the same compositions another time on the same kind of machine.

Steps of one run say how steady that run was (repeats.py). Whether steps repeat themselves shows where a run is made
again: schedulers that weigh times may cut the gradient otherwise, and what ranks wait for each other may differ.
"""

import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scipy.stats import kendalltau

from papers.prediction.measured import NEAR, Predicted, collect, near
from papers.prediction.repeats import STEADY
from wirebench.record import recorded

SUFFIX = "-again"
"""Suffix of the folder's name."""
HEAD = ("another time ms",)


class AnotherTime(NamedTuple):
    """Both times of the compositions that were run twice.

    name     of the other time's folder
    commits  that made the other time's runs
    steps    seconds of the step this time and the other time, by the run's name
    steady   names of the runs whose steps repeat themselves to STEADY within both times, by their percentiles
    """

    name: str
    commits: frozenset[str]
    steps: dict[str, tuple[float, float]]
    steady: frozenset[str]

    @property
    def agreeing(self) -> set[str]:
        """Names of the runs whose two steps lie within STEADY of each other."""
        return {name for name, both in self.steps.items() if max(both) <= (1 + STEADY) * min(both)}

    def cells(self, name: str) -> list[str]:
        """Return the cells of the run's row in the table."""
        return [f"{1e3 * self.steps[name][1]:.2f}" if name in self.steps else "-"]

    def said(self) -> str:
        """Return a sentence: how far the two times lie apart."""
        apart = [max(both) / min(both) - 1 for both in self.steps.values()]
        commits, order = ", ".join(sorted(self.commits)), _tau(*zip(*self.steps.values(), strict=True))
        return (
            f"{len(self.steps)} of these runs were made another time ({self.name}, commits: {commits}): the two steps "
            f"of {len(self.agreeing)} lie within {100 * STEADY:.0f} % of each other, half of all within "
            f"{100 * statistics.median(apart):.1f} %, all within {100 * max(apart):.0f} %{order}."
        )

    def judged(self, errors: Mapping[str, float]) -> str:
        """How near predictions come where the two times agree; "" where none does. errors: by the run's name"""
        known = {name: error for name, error in errors.items() if name in self.steps}
        agreeing = self.agreeing & known.keys()
        if not agreeing:
            return ""
        both = agreeing & self.steady
        further = (
            "" if not both else f" {len(both)} of these also repeat themselves within both: {self._near(known, both)}"
        )
        return (
            f"{len(agreeing)} of these agree with another time: {self._near(known, agreeing)}{further} "
            f"{sum(self._twice_off(name, error) for name, error in known.items())} of the {len(known)} miss both times "
            f"by more than {100 * NEAR:.0f} %, on the same side."
        )

    def _near(self, errors: Mapping[str, float], names: Collection[str]) -> str:
        worst = max(sorted(names), key=lambda name: abs(errors[name]))
        measured = [self.steps[name][0] for name in names]
        predicted = [self.steps[name][0] * (1 + errors[name]) for name in names]
        return (
            f"of the predictions {sum(near(errors[name]) for name in names)} are within {100 * NEAR:.0f} %, the mean "
            f"error is {100 * statistics.fmean(abs(errors[name]) for name in names):.1f} %, the largest "
            f"{100 * errors[worst]:+.1f} % ({worst}){_tau(predicted, measured)}."
        )

    def _twice_off(self, name: str, error: float) -> bool:
        here, there = self.steps[name]
        other = (1 + error) * here / there - 1
        return not near(error) and not near(other) and (error > 0) == (other > 0)


def _tau(first: Sequence[float], second: Sequence[float]) -> str:
    """Kendall's tau of their order, as the end of a sentence; "" without a tau, as for a single step."""
    if min(len(set(first)), len(set(second))) <= 1:
        return ""
    return f"; Kendall's tau of their order {kendalltau(first, second).statistic:.2f}"


def is_repeat(folder: Path) -> bool:
    """Whether its runs are another folder's, made another time."""
    name = folder.resolve().name
    return name.endswith(SUFFIX) and name != SUFFIX


def find(folder: Path, runs: Sequence[Predicted]) -> AnotherTime | None:
    """The runs beside the other folder's runs of the same settings.

    None where there are none, or where another kind of machine made them. UserError for a damaged record.
    """
    here = folder.resolve()
    other = here.with_name(here.name.removesuffix(SUFFIX) if is_repeat(here) else here.name + SUFFIX)
    if not other.is_dir() or (machine := recorded.machine_of(here)) is None or recorded.machine_of(other) != machine:
        return None
    there = {each.name: each for each in collect(other)}
    twice = [(one, two) for one in runs if (two := there.get(one.name)) and _settings(one) == _settings(two)]
    if not twice:
        return None
    steady = {one.name for one, two in twice if one.steady and two.steady}
    steps = {one.name: (one.seconds, two.seconds) for one, two in twice}
    return AnotherTime(other.name, frozenset(two.run.commit for _, two in twice), steps, frozenset(steady))


def _settings(each: Predicted) -> dict[str, object]:
    return {section: values for section, values in each.record["config"].items() if section not in ("name", "output")}
