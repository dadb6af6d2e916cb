"""What compressors did to accuracy or to loss where it was measured, to be read beside what they gain."""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wirebench.planner.candidate import Candidate
from wirebench.planner.compositions import DENSE
from wirebench.planner.dense import DenseRuns

ELSEWHERE = "*"
"""Marks what was measured otherwise than it is ranked, as OTHERWISE says."""
OTHERWISE = "measured with another density, other options or other local steps"
TOLERANCE = 0.5
"""Points of top-1, or percent of loss, that the worst seed may lose."""
SAME_SIZE = 2.0
"""A model whose parameters differ by at most this factor is not an extrapolation."""


class Measure(NamedTuple):
    """What trainings are compared by.

    head    of the table's column
    told    in the table's legend
    unit    after a number, in a line
    places  decimal places of a number in a table, and in words
    folder  of the trainings
    """

    head: str
    told: str
    unit: str
    places: tuple[int, int]
    folder: str


TOP1 = Measure("top-1", "points beside dense", "points", (1, 1), "results/convergence and results/today/resnet")
LOSS = Measure("loss", "as a multiple of dense training's", "x", (3, 3), "results/sizes and results/today/gpt")


class Standing(enum.IntEnum):
    """What is known of a composition's training, the best first."""

    WITHIN = 0
    """Its worst seed lost no more than is tolerated."""
    COSTS = 1
    TOO_MUCH = 2
    """It lost so much that it is not recommended."""
    UNKNOWN = 3
    """It diverged, was never trained so, or its time is known on noise alone."""


class Model(NamedTuple):
    """What was trained: `words` follow "of"."""

    words: str
    parameters: int


class Ended(NamedTuple):
    """How a compressor's runs ended: how much better than dense ones (None: diverged), its density if it has one.

    points    points of top-1, or percent of dense training's loss, beside the mean of the dense runs; below 0: worse
    between   the least and the most of its seeds; None where one alone was trained
    schedule  its local steps, as `schedules.words_of` has them; "": it exchanged in every step
    options   that are not the compressor's own defaults, in words
    dense     points of the worst of the dense seeds that it is compared with
    model     that was trained
    """

    points: float | None
    density: float | None
    between: tuple[float, float] | None = None
    measure: Measure = TOP1
    schedule: str = ""
    options: str = ""
    dense: float = 0.0
    model: Model | None = None

    @property
    def lost(self) -> float:
        """Loss of its worst seed against the worst dense seed, or of its mean against the dense mean, if that is more.

        inf where one diverged. Dense seeds differ, too: their worst one is no loss.
        """
        if self.points is None:
            return math.inf
        return max(-self.points, self.dense - (self.points if self.between is None else self.between[0]))

    @property
    def said(self) -> str:
        """The mean with the range of seeds."""
        if self.points is None or self.between is None:
            return self.mean
        return f"{self.mean} [{' - '.join(self._ends(self.measure.places[1]))}]"

    @property
    def mean(self) -> str:
        """Without the range."""
        return "diverged" if self.points is None else self._text(self.points, self.measure.places[1])

    @property
    def cell(self) -> str:
        """The range in a table."""
        if self.points is None or self.between is None:
            return self.mean
        return "..".join(self._ends(self.measure.places[0]))

    def _ends(self, places: int) -> list[str]:
        """The least number first."""
        assert self.between is not None
        ends = reversed(self.between) if self.measure is LOSS else self.between
        return [self._text(each, places) for each in ends]

    def _text(self, points: float, places: int) -> str:
        if self.measure is LOSS:
            return f"{ratio(points):.{places}f}"
        return f"{round(points, places) + 0.0:+.{places}f}"


def ratio(points: float) -> float:
    """A loss over dense training's, of percent below it."""
    return 1 - points / 100


@dataclass(frozen=True)
class Accuracies:
    """Runs of compressors beside dense ones.

    setting   what they trained, in words; "" where there are none
    known     by compressor, exchanging in every step
    local     by compressor, exchanging after local steps: one for each schedule
    too_much  points: what lost more is not recommended
    dense     all forms of dense training; () where none was for less than the whole
    """

    setting: str
    known: Mapping[str, Ended]
    local: Mapping[str, Sequence[Ended]] = field(default_factory=dict)
    measure: Measure = TOP1
    too_much: float = 5.0
    dense: tuple[DenseRuns, ...] = ()

    def of(self, each: Candidate) -> Ended | None:
        """How a composition's compressor ended; None: it was not trained so.

        With local steps: how it ended with the same schedule, or else with the most similar one of the same scheduler.
        """
        if not each.local:
            return self.known.get(each.compressor)
        name, *options = each.local.split(":")
        split = [(one, one.schedule.split(":")) for one in self.local.get(each.compressor, ())]
        those = [(one, {*options} ^ {*theirs[1:]}) for one, theirs in split if theirs[0] == name]
        return min(those, key=lambda pair: len(pair[1]), default=(None, set()))[0]

    def otherwise(self, each: Candidate, density: float | None) -> str:
        """How the measured runs differ from the composition at this density, in words; "" if they do not."""
        ended = self.of(each)
        if ended is None or ended.points is None:
            return ""
        found = [f"at density {ended.density}, not {density}"] if ended.density != density else []
        if ended.schedule != each.local:
            found.append(f"with {ended.schedule}, not {each.local}")
        return " and ".join(found + [f"with {ended.options}"] * bool(ended.options))

    def standing(self, each: Candidate, density: float | None, tolerance: float = TOLERANCE) -> Standing:
        """The standing of a composition whose compressor works at this density."""
        if is_exact(each):
            return Standing.WITHIN
        ended = self.of(each)
        if ended is None or ended.points is None or self.untrained(each, density):
            return Standing.UNKNOWN
        if ended.points < -self.too_much:
            return Standing.TOO_MUCH
        return Standing.WITHIN if ended.lost <= tolerance and not ended.options else Standing.COSTS

    def untrained(self, each: Candidate, density: float | None) -> str:
        """Why the composition was never trained so, in words; "" where it was, or with more left out."""
        ended = self.of(each)
        if is_exact(each):
            return ""
        if ended is None:
            return f"was never trained{' with local steps' * bool(each.local)} ({self.measure.folder})"
        if ended.points is None:
            return "diverged in training"
        fewer = ended.density is not None and (density is None or density < ended.density)
        if ended.schedule != each.local or fewer:
            return f"was trained {self.otherwise(each, density)}"
        return ""


def is_exact(each: Candidate) -> bool:
    """Whether a composition averages whole gradients in every step, and so loses nothing."""
    return each.compressor == DENSE and not each.local
