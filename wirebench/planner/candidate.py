"""A composition that is ranked, with its ranges, and by how much a compressor's is below what would pay."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from wirebench.exchange.pipeline import Step
from wirebench.planner import compositions
from wirebench.planner.compositions import DENSE
from wirebench.planner.ranges import Between
from wirebench.simulation.simulator import Factors, Simulated

WORTHWHILE = 0.99
"""Share of the dense step's time: a compressor whose step takes more than this does not pay."""
HIDDEN = 0.02
"""Share of the computing time: a step that waits for less than this is compute-bound."""


@dataclass(frozen=True)
class Candidate:
    """One composition.

    samples    of all workers in a step
    stretched  its step, with the exchange's seconds multiplied by factors
    factors    of the shortest and of the longest exchange that it may have
    local      its schedule in words, if that has local steps, which change how a model learns; "" if not
    """

    compressor: str
    scheduler: str
    collective: str
    found: Simulated
    samples: float
    stretched: Callable[[Factors], Step] = field(repr=False)
    factors: tuple[Factors, Factors]
    unit: str = "images"
    local: str = ""

    @functools.cached_property
    def between(self) -> Between:
        """Seconds of the step, at least and at most."""
        return Between(*(self.stretched(each).seconds for each in self.factors))

    @property
    def expected_seconds(self) -> float:
        """Seconds of the step that are to be expected.

        Of two steps that are predicted alike, one that barely hides a long exchange has more to lose.
        """
        return self.between.expected(self.found.step.seconds)

    @property
    def images_per_second(self) -> float:
        """Images per second that are to be expected."""
        return self.samples / self.expected_seconds

    @property
    def images_between(self) -> Between:
        """Images per second, at least and at most."""
        return self.between.rates(self.samples)

    @property
    def serial(self) -> float:
        """Images per second if nothing else went on while it compresses; a GPU that computes may come near that."""
        parts = self.found
        seconds = min(parts.step.seconds + parts.compress, parts.alone + parts.compress + parts.communicate)
        # On cores that all hosts share a step may be longer: it handles gradients, too.
        return self.images_per_second * parts.step.seconds / max(seconds, parts.step.seconds)

    @property
    def serial_between(self) -> Between:
        """Bounds of `serial`: images per second, at least and at most."""
        parts = self.found
        seconds = [
            max(
                step,
                min(
                    step + factors.compress * parts.compress,
                    parts.alone + factors.compress * parts.compress + factors.messages * parts.communicate,
                ),
            )
            for step, factors in zip(self.between, self.factors, strict=True)
        ]
        return Between(*seconds).rates(self.samples)

    @property
    def limit(self) -> str:
        """What the step waits for: messages, the compressor's own work, or hardly anything."""
        if self.found.step.exposed < HIDDEN * self.found.alone:
            return "computing"
        return "compressing" if self.found.compress > self.found.communicate else "messages"


class Margin(NamedTuple):
    """Seconds by which a compressor's step is below what would pay, by what is counted of both steps."""

    dense: Callable[[Candidate], float]
    lossy: Callable[[Candidate], float]

    def of(self, dense: Candidate, lossy: Candidate) -> float:
        """The margin of these two compositions."""
        return WORTHWHILE * self.dense(dense) - self.lossy(lossy)

    def most(self, dense: Candidate) -> float:
        """The margin of a compressor whose exchange takes no time: no step is shorter than its computation."""
        return WORTHWHILE * self.dense(dense) - dense.found.alone


def _seconds(advice: Candidate) -> float:
    return advice.expected_seconds


EXPECTED = Margin(_seconds, _seconds)
SURELY = Margin(lambda dense: dense.between.low, lambda lossy: lossy.between.high)
"""The shortest dense step, and the longest of the compressor's."""
POSSIBLY = Margin(lambda dense: dense.between.high, lambda lossy: lossy.between.low)
"""The longest dense step, and the shortest of the compressor's."""


class Speedup(NamedTuple):
    """Times as fast as another composition: as expected, at least and at most."""

    expected: float
    low: float
    high: float

    @property
    def too_close(self) -> bool:
        """Whether no gain lies in the range, too."""
        return self.low <= 1 <= self.high


def speedup(each: Candidate, other: Candidate) -> Speedup:
    """Over the other composition; the errors of both are taken as independent: on logarithms their squares add up."""
    if (each.compressor, each.scheduler, each.collective) == (other.compressor, other.scheduler, other.collective):
        return Speedup(1.0, 1.0, 1.0)
    (shorter, longer), (less, more) = _errors(each), _errors(other)
    gain = other.expected_seconds / each.expected_seconds
    return Speedup(gain, gain * math.exp(-math.hypot(longer, less)), gain * math.exp(math.hypot(shorter, more)))


def _errors(each: Candidate) -> tuple[float, float]:
    """How much shorter and longer than expected its step may be, as natural logarithms of ratios."""
    low, high = each.between
    return math.log(each.expected_seconds / low), math.log(high / each.expected_seconds)


def place(advice: Candidate) -> float:
    """Sort key: expected seconds of a step, with dense before all that is not worth its loss."""
    return advice.expected_seconds * (WORTHWHILE if advice.compressor == DENSE else 1)


def overrides(each: Candidate, density: float | None) -> list[str]:
    """The settings of a config that make this composition."""
    scheduler, *options = each.scheduler.split(":")
    return [
        *compositions.overrides(each.compressor),
        *(f"compressor.{key}={value:g}" for key, value in compositions.density_of(each.compressor, density).items()),
        f"scheduler.name={scheduler}",
        *(f"scheduler.{option}" for option in options),
        f"collective.name={each.collective}",
    ]
