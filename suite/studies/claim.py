"""A claim, and the one rule that says whether what was measured bears it out."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

State = Literal["reproduced", "direction reproduced", "not decidable", "not reproduced", "contradicted", "not run here"]
"""What a measurement says of a claim.

reproduced            within the claim's tolerance
direction reproduced  beyond no effect, on the claim's side, but not by its figure
not decidable         the measurements hold the claim as well as no effect, or miss it in a setting that is not stated
not reproduced        missed, in the setting that is stated
contradicted          missed, and there is an argument why the figure cannot be
not run here          nothing was measured
"""
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True)
class Claim:
    """What a paper, or this suite, says of a number.

    id            by which run.py and report.py name it
    text          in words; where: section, table or figure
    number        the figure, or both ends of its range, in `unit`
    setting       in which it was found, or "not stated"
    tolerance     share of the figure by which a measurement may miss it
    holds         whether the figure is to be met, reached, not passed, or met in one of several
    shown         the figure as tables show it, where that is not number and unit
    unstated      what the source leaves out, so that missing the figure decides nothing
    no_effect     the measurement that would mean no effect at all; a claim is of more than that
    contradicted  why the figure cannot be
    not_run       why it is not measured here; command: with which somebody can who has what that needs
    about         the study's own keys: which model, which rival
    """

    id: str
    text: str
    where: str
    number: tuple[float, ...]
    unit: str
    setting: str
    tolerance: float
    holds: Literal["about", "at least", "at most", "one of"] = "about"
    shown: str = ""
    unstated: str = ""
    no_effect: float | None = None
    contradicted: str = ""
    not_run: str = ""
    command: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> bool:
        """Whether it is this suite's, although it stands beside a paper's."""
        return self.where.startswith("this suite's")

    def judge(
        self, measured: float | None, spread: tuple[float, float] | None = None, expected: float | None = None
    ) -> "Verdict":
        """The verdict on a measurement; None was not made.

        spread    its least and largest value; where it holds `no_effect` as well as the claim, nothing is decided
        expected  the figure of this very setting, where it is computed rather than published
        """
        if measured is None:
            return Verdict("not run here", why=self.not_run)
        figures = self.number if expected is None else (expected,)
        state, why = self._state(measured, spread or (measured, measured), figures)
        return Verdict(state, measured, why)

    def judge_interval(self, measured: float, interval: tuple[float, float]) -> "Verdict":
        """The verdict on an estimate with its confidence interval, which all bears the claim out, or none of it."""
        bounds = self._bounds(self.number)
        inside = [all(least <= end <= most for end in interval) for least, most in bounds]
        outside = [interval[1] < least or most < interval[0] for least, most in bounds]
        missed: State = "not decidable" if self.unstated else "not reproduced"
        state: State = "reproduced" if any(inside) else missed if all(outside) else "not decidable"
        numbers = f"between {shown(interval, self.unit).replace(' to ', ' and ')}"
        if all(outside):
            numbers = f"{shown((measured,), self.unit)}, not {self.figure()}"
        return Verdict(state, measured, "; ".join(filter(None, ("" if any(inside) else numbers, self.unstated))))

    def figure(self) -> str:
        """The figure as tables show it."""
        return self.shown or shown(self.number, self.unit)

    def _state(self, measured: float, spread: tuple[float, float], figures: tuple[float, ...]) -> tuple[State, str]:
        bounds = self._bounds(figures)
        possible = any(spread[0] <= most and least <= spread[1] for least, most in bounds)
        none, side = self.no_effect, self._side(figures)
        if none is not None and possible and spread[0] <= none <= spread[1]:
            return "not decidable", f"{shown(spread, self.unit)} is no effect as well as the claim"
        beyond = not side or side * (measured - (none or 0)) > 0
        if beyond and any(least <= measured <= most for least, most in bounds):
            return "reproduced", self.unstated
        bound = self.holds in ("at least", "at most") and figures == self.number
        claimed = self.figure() if bound else shown(figures, self.unit)
        numbers = f"{shown((measured,), self.unit)}, not {claimed}"
        missed, reason = self._missed(side, spread)
        return missed, "; ".join(filter(None, (numbers, reason)))

    def _missed(self, side: int, spread: tuple[float, float]) -> tuple[State, str]:
        """What missing the figure means, and why."""
        if self.contradicted:
            return "contradicted", self.contradicted
        if side and all(side * (end - (self.no_effect or 0)) > 0 for end in spread):
            return "direction reproduced", self.unstated
        return ("not decidable" if self.unstated else "not reproduced"), self.unstated

    def _side(self, figures: tuple[float, ...]) -> int:
        """On which side of no effect the claim is: 1 above, -1 below, 0 where it does not say."""
        if self.no_effect is None:
            return 0
        difference = statistics.mean(figures) - self.no_effect
        return (difference > 0) - (difference < 0) or int(self.holds == "at least")

    def _bounds(self, figures: tuple[float, ...]) -> list[tuple[float, float]]:
        """Ranges of which a measurement within one bears the claim out."""
        ranges = [(each, each) for each in figures] if self.holds == "one of" else [(figures[0], figures[-1])]
        least, most = 1 - self.tolerance, 1 + self.tolerance
        return [
            (
                -math.inf if self.holds == "at most" else least * low,
                math.inf if self.holds == "at least" else most * high,
            )
            for low, high in ranges
        ]


class Verdict(NamedTuple):
    """What a measurement says of a claim.

    why       both numbers where they differ; what the source leaves out; why nothing can be said
    settings  of a claim about several: those in which it is not reproduced
    """

    state: State
    measured: float | None = None
    why: str = ""
    settings: tuple[str, ...] = ()

    @property
    def good(self) -> bool:
        """Whether the claim is reproduced."""
        return self.state == "reproduced"

    @property
    def words(self) -> str:
        """As a table says it."""
        where = f" ({', '.join(self.settings)})" if self.settings else ""
        return self.state + where + (f"{';' if self.good else ':'} {self.why}" if self.why else "")


def shown(number: tuple[float, ...], unit: str) -> str:
    """A figure, or both ends of a range, with its unit."""
    if unit == "x":
        return " to ".join(f"{each:.2f}x" for each in number)
    if unit.startswith("share"):
        return " to ".join(f"{100 * each:.1f}" for each in number) + " %"
    return " to ".join(f"{each:.3g}" for each in number) + f" {unit}"


def together(verdicts: Mapping[str, Verdict], argument: str = "") -> Verdict:
    """Of a claim about several settings: the verdict that is the furthest from reproduced, and the settings without it.

    argument  of a claim that is contradicted, which is told

    Settings that were not run say nothing; one that was run and gave no number (a method that diverged, say) does.
    Both numbers are told where there is one setting only.
    """
    if len(verdicts) == 1:
        return next(iter(verdicts.values()))
    judged = {name: verdict for name, verdict in verdicts.items() if verdict.state != "not run here"}
    if not judged:
        return Verdict("not run here", why=next((verdict.why for verdict in verdicts.values() if verdict.why), ""))
    worst = max(judged.values(), key=lambda verdict: STATES.index(verdict.state))
    why = argument if worst.state == "contradicted" else ""
    return Verdict(worst.state, why=why, settings=tuple(name for name, verdict in judged.items() if not verdict.good))
