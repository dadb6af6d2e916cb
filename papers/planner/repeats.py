"""How well a measured step repeats itself: by one run's own steps, and from one time to another.

A record keeps the 10th percentile, the median and the 90th percentile of its counted steps, not each step. Were the
steps drawn independently, the median of n of them would scatter by sqrt(pi / 2n) of the steps' standard deviation, and
two such medians would differ by sqrt(2) times as much. That is the least by which runs differ: what a machine does
otherwise an hour later is in no single run. The seconds of whole epochs, which a record has as well, say less: they
include what an epoch's end takes, which is a tenth of a step and more where an epoch has one step.

Whether steps repeat themselves shows where a run is made again, in the folder of its name and SUFFIX. Schedulers that
weigh times may cut the gradient otherwise, and ranks may wait for each other longer.
"""

import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from papers.planner.measured import Scored, near
from papers.significance import tau_of
from wirebench.record import recorded
from wirebench.record.notes import NotedRun

STEADY = 0.03
"""A step that repeats itself to this share of its time was measured well enough to judge a forecast by."""
LEAST_STEPS = 5
"""With fewer steps percentiles depend on one or two of them."""
SURE = 1.96
"""Standard deviations within which 19 of 20 values of a normal distribution lie."""
DECILES = 2.563
"""Standard deviations from the 10th to the 90th percentile of a normal distribution."""
SUFFIX = "-again"


def repeats_to(record: Mapping[str, Any]) -> float | None:
    """Share of the median step within which 19 of 20 medians of other such runs would lie; None where none can tell."""
    steps, count = record["step_seconds"], record["images_per_second"]["steps"]
    low, middle, high = (steps[key] for key in ("p10", "median", "p90"))
    if None in (low, middle, high) or count < LEAST_STEPS or not middle:
        return None
    deviation = (high - low) / DECILES
    return float(SURE * math.sqrt(2) * math.sqrt(math.pi / (2 * count)) * deviation / middle)


def steady(scored: Scored) -> set[str]:
    """Labels of the runs that repeat themselves to STEADY by their own steps."""
    found = ((line.row.label, repeats_to(line.run.record)) for line in scored.lines)
    return {label for label, share in found if share is not None and share <= STEADY}


class AnotherTime(NamedTuple):
    """The runs that were made twice.

    name     of the other time's folder; commits: that made its runs
    steps    seconds of the step this time and the other time, by label
    steady   labels of the runs that repeat themselves to STEADY within both times
    """

    name: str
    commits: frozenset[str]
    steps: dict[str, tuple[float, float]]
    steady: frozenset[str]

    @property
    def agreeing(self) -> set[str]:
        """Labels of the runs whose two steps lie within STEADY of each other."""
        return {label for label, both in self.steps.items() if max(both) <= (1 + STEADY) * min(both)}

    @property
    def cells(self) -> list[str]:
        """How far the two times lie apart: how many runs, how many agree, by how much half and all do, and tau."""
        apart = [100 * (max(both) / min(both) - 1) for both in self.steps.values()]
        tau = tau_of(*zip(*self.steps.values(), strict=True))
        return [
            f"{self.name} (commits: {', '.join(sorted(self.commits))})", str(len(self.steps)), str(len(self.agreeing)),
            f"{statistics.median(apart):.1f} %", f"{max(apart):.0f} %", "-" if math.isnan(tau) else f"{tau:.2f}",
        ]  # fmt: skip

    def twice_off(self, label: str, error: float) -> bool:
        """Whether a forecast that is off by this share misses both times, on the same side."""
        here, there = self.steps[label]
        other = (1 + error) * here / there - 1
        return not near(error) and not near(other) and (error > 0) == (other > 0)


def another_time(scored: Scored) -> AnotherTime | None:
    """The runs of the same settings that the same kind of machine made another time; None where there are none."""
    here = scored.folder.resolve()
    name = here.name.removesuffix(SUFFIX) if here.name.endswith(SUFFIX) else here.name + SUFFIX
    machine = recorded.machine_of(here)
    if not name or machine is None or recorded.machine_of(here.with_name(name)) != machine:
        return None
    other = Scored(here.with_name(name))
    there = {line.row.label: line for line in other.lines}
    twice = [
        (line, again)
        for line in scored.lines
        if (again := there.get(line.row.label)) and _settings(line.run) == _settings(again.run)
    ]
    if not twice:
        return None
    steps = {line.row.label: (line.measured, again.measured) for line, again in twice}
    both = steady(scored) & steady(other) & steps.keys()
    return AnotherTime(name, frozenset(again.run.commit for _, again in twice), steps, frozenset(both))


def _settings(run: NotedRun) -> dict[str, object]:
    return {section: values for section, values in run.record["config"].items() if section not in ("name", "output")}
