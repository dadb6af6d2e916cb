"""What compressors did to accuracy or to loss where it was measured, to be read beside what they gain."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from suite.planner.advice import Advice

ELSEWHERE = "*"
"""Marks what was measured otherwise than it is ranked, as OTHERWISE says."""
OTHERWISE = "measured with another density, other options or other local steps"


class Measure(NamedTuple):
    """What trainings are compared by.

    head       of the table's column
    what       in a sentence, to be measured
    told       in the table's legend, before the setting
    unit       after a number, in a sentence
    short      the same in brackets
    places     decimal places of a number in a table, and in a sentence
    mildest    the compressor that loses least of those that hardly compress
    folder     of the trainings
    """

    head: str
    what: str
    told: str
    unit: str
    short: str
    places: tuple[int, int]
    mildest: str
    folder: str


TOP1 = Measure(
    "top-1", "accuracy", "points beside dense, of the worst seed and the best", "points of top-1", "points",
    (1, 1), "fp16", "results/convergence and results/today/resnet",
)  # fmt: skip
LOSS = Measure(
    "loss", "loss", "times that of dense training, of the best seed and the worst", "times dense training's loss",
    "times the loss", (2, 3), "bf16", "results/today/gpt",
)  # fmt: skip


class Ended(NamedTuple):
    """How a compressor's runs ended: how much better than dense ones (None: diverged), its density if it has one.

    points    points of top-1, or percent of dense training's loss; below 0: worse
    between   the least and the most of its seeds; None where one alone was trained
    schedule  its local steps, as `schedules.words_of` has them; "": it exchanged in every step
    options   that are not the compressor's own defaults, in words
    """

    points: float | None
    density: float | None
    between: tuple[float, float] | None = None
    measure: Measure = TOP1
    schedule: str = ""
    options: str = ""

    @property
    def said(self) -> str:
        """In a sentence, before the unit."""
        if self.points is None:
            return "diverged"
        places = self.measure.places[1]
        ends = "" if self.between is None else f" [{' - '.join(self._ends(places))}]"
        return self._text(self.points, places) + ends

    @property
    def cell(self) -> str:
        """In a table."""
        if self.points is None or self.between is None:
            return self.said
        return "..".join(self._ends(self.measure.places[0]))

    @property
    def reason(self) -> str:
        """Why one that lost much is not recommended; it did not diverge."""
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
    """Runs of compressors beside dense ones.

    setting   what they trained, in words; "" where there are none
    known     by compressor, exchanging in every step
    local     by compressor, exchanging after local steps: one for each schedule
    too_much  points: what lost more is not recommended; limit: that in words
    """

    setting: str
    known: Mapping[str, Ended]
    local: Mapping[str, Sequence[Ended]] = field(default_factory=dict)
    measure: Measure = TOP1
    too_much: float = 5.0
    limit: str = ""

    def of(self, each: Advice) -> Ended | None:
        """How a composition's compressor ended; None: it was not trained so.

        With local steps: after those of the same schedule, or else of that of the same scheduler which is most like it.
        """
        if not each.local:
            return self.known.get(each.compressor)
        name, *options = each.local.split(":")
        split = [(one, one.schedule.split(":")) for one in self.local.get(each.compressor, ())]
        those = [(one, {*options} ^ {*theirs[1:]}) for one, theirs in split if theirs[0] == name]
        return min(those, key=lambda pair: len(pair[1]), default=(None, set()))[0]

    def cell(self, each: Advice, density: float | None) -> str:
        """Of a table, for a compressor that works at this density; "" where it was not measured."""
        ended = self.of(each)
        return "" if ended is None else ended.cell + ELSEWHERE * bool(self.otherwise(each, density))

    def otherwise(self, each: Advice, density: float | None) -> str:
        """In what the measured runs differ from the composition at this density, in words; "" where they do not."""
        ended = self.of(each)
        if ended is None or ended.points is None:
            return ""
        found = [f"at density {ended.density}, not {density}"] if ended.density != density else []
        if ended.schedule != each.local:
            found.append(f"with {ended.schedule}, not {each.local}")
        return " and ".join(found + [f"with {ended.options}"] * bool(ended.options))

    def trained(self, each: Advice) -> bool:
        """Whether the compressor was trained to an end; True where nothing at all was measured."""
        ended = self.of(each)
        return not self.known or (ended is not None and ended.points is not None)

    def counts(self, each: Advice) -> bool:
        """Whether it was trained and did not lose too much; also where nothing at all was measured."""
        ended = self.of(each)
        return self.trained(each) and (ended is None or ended.points is None or ended.points >= -self.too_much)
