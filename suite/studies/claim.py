"""A claim, and the one rule that says whether what was measured bears it out."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

State = Literal["reproduced", "not reproduced", "reproduced in part", "cannot be told", "not judged", "not measured"]
"""in part: better than no effect, by another factor; cannot be told: the spread holds the claim as well as none."""


@dataclass(frozen=True)
class Claim:
    """What a paper, or this suite, says of a number.

    id         by which run.py and report.py name it
    text       in words; where: section, table or figure
    number     the figure, or both ends of its range, in `unit`
    setting    in which it was found, or "not stated"
    tolerance  share of the figure by which a measurement may miss it; None: it stands beside, and is not judged
    holds      whether the figure is to be met, reached, not passed, or met in one of several
    shown      the figure as tables show it, where that is not number and unit
    unstated   what the source leaves out, so that no verdict says more than that the numbers are alike
    no_effect  the measurement that would mean no effect at all; a claim is of more than that
    about      the study's own keys: which model, which rival
    """

    id: str
    text: str
    where: str
    number: tuple[float, ...]
    unit: str
    setting: str
    tolerance: float | None
    holds: Literal["about", "at least", "at most", "one of"] = "about"
    shown: str = ""
    unstated: str = ""
    no_effect: float | None = None
    about: Mapping[str, Any] = field(default_factory=dict)

    def judge(
        self, measured: float | None, spread: tuple[float, float] | None = None, expected: float | None = None
    ) -> "Verdict":
        """The verdict on a measurement; None was not made.

        spread    its least and largest value; where it holds `no_effect` as well as the claim, nothing can be told
        expected  the figure of this very setting, where it is computed rather than published
        """
        figures = self.number if expected is None else (expected,)
        state = "not measured" if measured is None else self._state(measured, spread or (measured, measured), figures)
        return Verdict(state, measured, figures[0], spread, self.unstated)

    def _state(self, measured: float, spread: tuple[float, float], figures: tuple[float, ...]) -> State:
        if self.tolerance is None:
            return "not judged"
        ranges = [(each, each) for each in figures] if self.holds == "one of" else [(figures[0], figures[-1])]
        bounds = [self._bounds(low, high, self.tolerance) for low, high in ranges]
        none = self.no_effect
        possible = any(spread[0] <= most and least <= spread[1] for least, most in bounds)
        if none is not None and possible and spread[0] <= none <= spread[1]:
            return "cannot be told"
        beyond = none is None or self.holds == "at most" or measured > none
        if beyond and any(least <= measured <= most for least, most in bounds):
            return "reproduced"
        return "reproduced in part" if none is not None and spread[0] > none else "not reproduced"

    def _bounds(self, low: float, high: float, tolerance: float) -> tuple[float, float]:
        """Between which a measurement bears out a figure."""
        least = -math.inf if self.holds == "at most" else (1 - tolerance) * low
        return least, math.inf if self.holds == "at least" else (1 + tolerance) * high


class Verdict(NamedTuple):
    """What a measurement says of a claim, and both numbers."""

    state: State
    measured: float | None
    expected: float
    spread: tuple[float, float] | None = None
    unstated: str = ""

    @property
    def good(self) -> bool:
        """Whether the claim is reproduced."""
        return self.state == "reproduced"

    @property
    def factors(self) -> str:
        """In words, of a claim about a factor: with both numbers, and with what the source leaves out."""
        numbers = f"{self.measured or 0:.2f}x, not {self.expected}x"
        low, high = self.spread or (self.measured or 0, self.measured or 0)
        said = {
            "not reproduced": f"not reproduced: {numbers}",
            "reproduced in part": f"faster too, by another factor: {numbers}",
            "cannot be told": f"cannot be told: {low:.2f}x to {high:.2f}x holds 1x as well as the claim",
        }.get(self.state, self.state)
        return said + (f"; {self.unstated}" if self.unstated else "")

    @property
    def deviation(self) -> str:
        """In words, beside a table that has both numbers: by how much they differ."""
        percent = f"{100 * ((self.measured or 0) / self.expected - 1):+.0f} %"
        return {"not reproduced": f"not reproduced: {percent}", "not judged": f"off by {percent}"}.get(
            self.state, self.state
        )


def together(verdicts: Mapping[str, Verdict]) -> str:
    """Of a claim about several settings, in words: reproduced where it is in all; else the settings where it is not."""
    if not verdicts:
        return "not measured"
    failing = [name for name, verdict in verdicts.items() if not verdict.good]
    where = f" ({', '.join(failing)})" if failing and len(verdicts) > 1 else ""
    return ("not reproduced" if failing else "reproduced") + where
