"""What compressors did to accuracy or to loss where it was measured, to be read beside what they gain."""

from dataclasses import dataclass, field
from typing import NamedTuple

from suite.planner.advice import Advice

ELSEWHERE = "*"
"""Marks what was measured at another density, or with local steps of another schedule."""


class Measure(NamedTuple):
    """What trainings are compared by.

    head     of the table's column
    what     in a sentence, to be measured
    told     in the table's legend, before the setting
    unit     after a number, in a sentence
    mildest  the compressor that loses least of those that hardly compress
    folder   of the trainings
    """

    head: str
    what: str
    told: str
    unit: str
    mildest: str
    folder: str


TOP1 = Measure(
    "top-1", "accuracy", "points beside dense, of the worst seed and the best",
    "points of top-1", "fp16", "results/convergence",
)  # fmt: skip
LOSS = Measure(
    "loss", "loss", "times that of dense training, of the best seed and the worst",
    "times dense training's loss", "bf16", "results/today/gpt",
)  # fmt: skip


class Ended(NamedTuple):
    """How a compressor's runs ended: how much better than dense ones (None: diverged), its density if it has one.

    points   points of top-1, or percent of dense training's loss; below 0: worse
    between  the least and the most of its seeds; None where one alone was trained
    """

    points: float | None
    density: float | None
    between: tuple[float, float] | None = None
    measure: Measure = TOP1

    @property
    def said(self) -> str:
        """In a sentence, before the unit."""
        if self.points is None:
            return "diverged"
        places = 3 if self.measure is LOSS else 1
        ends = "" if self.between is None else f" [{' - '.join(self._ends(places))}]"
        return self._text(self.points, places) + ends

    @property
    def cell(self) -> str:
        """In a table."""
        return (
            self.said
            if self.points is None or self.between is None
            else "..".join(self._ends(2 if self.measure is LOSS else 1))
        )

    @property
    def lost(self) -> str:
        """In a sentence on one that lost much; it did not diverge."""
        assert self.points is not None
        if self.measure is LOSS:
            return f"ended at {self.said} {self.measure.unit}"
        ends = "" if self.between is None else f" [{-self.between[1]:.1f} - {-self.between[0]:.1f}]"
        return f"lost {-self.points:.1f}{ends} {self.measure.unit} in training"

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
    """Runs of compressors with their own options, beside dense ones.

    setting   what they trained, in words; "" where there are none
    known     by compressor, exchanging in every step
    local     by compressor, exchanging after local steps; schedules: those that had them
    too_much  points: what lost more is not recommended
    limit     that in words
    """

    setting: str
    known: dict[str, Ended]
    local: dict[str, Ended] = field(default_factory=dict)
    schedules: tuple[str, ...] = ()
    measure: Measure = TOP1
    too_much: float = 5.0
    limit: str = ""

    def of(self, each: Advice) -> Ended | None:
        """How a composition's compressor ended, with local steps where it has them; None: it was not trained so."""
        return (self.local if each.local else self.known).get(each.compressor)

    def cell(self, each: Advice, density: float | None) -> str:
        """Of a table, for a compressor that works at this density; "" where it was not measured."""
        ended = self.of(each)
        return "" if ended is None else ended.cell + (ELSEWHERE if self.elsewhere(each, density) else "")

    def elsewhere(self, each: Advice, density: float | None) -> bool:
        """Whether the compressor ended well, at another density than this or with another schedule's local steps."""
        ended = self.of(each)
        if ended is None or ended.points is None:
            return False
        return ended.density != density or (each.local and each.scheduler not in self.schedules)

    def trained(self, each: Advice) -> bool:
        """Whether the compressor was trained to an end; True where nothing at all was measured."""
        ended = self.of(each)
        return not self.known or (ended is not None and ended.points is not None)
