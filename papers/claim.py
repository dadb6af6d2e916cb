"""A claim, and the one rule that decides whether a measurement confirms it."""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from papers.estimate import Ends, Estimate, exact, surely
from papers.significance import LEAST_RUNS, LEVEL

State = Literal[
    "reproduced", "direction reproduced", "not decidable", "not reproduced", "contradicted", "other setting",
    "not run here",
]  # fmt: skip
"""What a measurement says of a claim.

  reproduced            within the claim's tolerance, surely an effect where one is claimed
  direction reproduced  surely an effect, on the claim's side, but not by its figure; or by a figure that rests on
                        settings which the source does not state
  not decidable         the interval holds the claim as well as its contrary; or the figure is missed, or met, where the
                        source does not state its setting
  not reproduced        surely missed, in the setting that is stated
  contradicted          surely missed, and there is an argument why the figure cannot be
  other setting         measured where the source does not say that its claim holds: too small, too short, too few
  not run here          nothing was measured, or not all that the claim is about
"""
STATES: tuple[State, ...] = get_args(State)
MISSED: tuple[State, ...] = ("not reproduced", "contradicted")
SCALES = ("parameters", "steps", "rounds", "workers", "tokens")
"""What is counted of a training, by which a claim may say where it holds."""


@dataclass(frozen=True)
class Claim:
    """What a paper, or this suite, says of a number.

    id            by which run.py and report.py name it
    text          in words; where: section, table or figure
    number        the figure, or both ends of its range, in `unit`
    setting       in which it was found, or "not stated"
    tolerance     share of the figure by which a measurement may miss it
    retold        what the tolerance was before it changed with results at hand, when, and why
    holds         whether the figure is to be met, reached, not passed, or met in one of several
    shown         the figure as tables show it, where that is not number and unit
    unstated      what the source leaves out, so that missing the figure decides nothing
    no_effect     the measurement that would mean no effect at all; a claim is of more than that
    least         by what records count (SCALES): the least at which the source says that its claim holds
    contradicted  why the figure cannot be
    not_run       why it is not measured here
    command       what makes what it is judged by on this machine; cluster: on a cluster of one's own
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
    retold: str = ""
    shown: str = ""
    unstated: str = ""
    least: Mapping[str, float] = field(default_factory=dict)
    no_effect: float | None = None
    contradicted: str = ""
    not_run: str = ""
    command: str = ""
    cluster: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own(self) -> bool:
        """Whether it is this suite's, although it stands beside a paper's."""
        return self.where.startswith(("this suite's", "docs/"))

    def judge(
        self, measured: Estimate | float | None, expected: float | None = None, level: float = LEVEL
    ) -> "Verdict":
        """The verdict on a measurement; None was not made, and a number is exact.

        expected  the figure of this very setting, where it is computed rather than published
        level     how often the interval may leave out the true value
        """
        if measured is None:
            return Verdict("not run here", why=self.not_run)
        estimate = measured if isinstance(measured, Estimate) else exact(measured)
        figures = self.number if expected is None else (expected,)
        state, why = self._state(estimate.value, estimate.between(level), figures)
        return Verdict(state, estimate.value, why)

    def judge_seeds(self, measured: Estimate, seeds: int) -> "Verdict":
        """The verdict on a measurement over seeds, of which fewer than LEAST_RUNS decide nothing."""
        if seeds < LEAST_RUNS:
            return Verdict("not decidable", measured.value, "too few seeds")
        return self.judge(measured)

    def judge_each(
        self, measured: Mapping[str, Estimate | float], expected: Mapping[str, float] | None = None
    ) -> dict[str, "Verdict"]:
        """The verdict on each of several settings. One is missed only if it is by Holm's correction for all of them."""
        figures = expected or {}
        estimates = {name: each if isinstance(each, Estimate) else exact(each) for name, each in measured.items()}

        def misses(name: str, ends: Ends) -> bool:
            estimate, figure = estimates[name], figures.get(name)
            expected = self.number if figure is None else (figure,)
            # A wider interval may lose sight of an effect: what is none at 5 % is no miss.
            return all(self._state(estimate.value, each, expected)[0] in MISSED for each in (ends, estimate.ends))

        missed, verdicts = surely(estimates, misses), {}
        for name, estimate in estimates.items():
            verdict = self.judge(estimate, figures.get(name))
            if verdict.state in MISSED and name not in missed:
                verdict = Verdict("not decidable", verdict.measured, f"missed, but one of {len(estimates)} may be")
            verdicts[name] = verdict
        return verdicts

    def outside(self, counted: Mapping[str, float | None]) -> str:
        """What puts a measurement outside the setting for which the source makes its claim; "" if nothing does."""
        beyond = [
            f"{_counted(counted.get(name), name)}, and the claim is of {_counted(least, name)} and more"
            for name, least in self.least.items()
            if (counted.get(name) or 0) < least
        ]
        return "; ".join(beyond)

    def figure(self) -> str:
        """The figure as tables show it."""
        return self.shown or shown(self.number, self.unit)

    def _state(self, measured: float, ends: Ends, figures: tuple[float, ...]) -> tuple[State, str]:
        """State of a measurement with its interval.

        Where an effect is claimed, the interval has to be beyond no effect; whether it reaches the figure is decided by
        the estimate, within the tolerance. Any other claim has to be confirmed by all of the interval. A claim is
        missed where none of the interval confirms it.
        """
        bounds, side = self._bounds(figures), self._side(figures)
        apart = all(ends[1] < least or most < ends[0] for least, most in bounds)
        none = self.no_effect
        if none is not None and side:
            effect = ends[0] > none if side > 0 else ends[1] < none
            hit = effect and any(least <= measured <= most for least, most in bounds)
        else:
            effect, hit = False, any(least <= ends[0] and ends[1] <= most for least, most in bounds)
        if hit and not self.unstated:
            return "reproduced", ""
        if hit:
            return ("direction reproduced" if effect else "not decidable"), self.unstated
        bound = self.holds in ("at least", "at most") and figures == self.number
        numbers = f"{shown((measured,), self.unit)}, not {self.figure() if bound else shown(figures, self.unit)}"
        if not apart and not effect:
            finite = all(map(math.isfinite, ends)) and ends != (0.0, math.inf)
            between = f"between {shown(ends, self.unit).replace(' to ', ' and ')}" if finite else "too few repeats"
            return "not decidable", "; ".join(filter(None, (between, self.unstated)))
        if apart and self.contradicted:
            return "contradicted", f"{numbers}; {self.contradicted}"
        missed: State = "direction reproduced" if effect else "not decidable" if self.unstated else "not reproduced"
        return missed, "; ".join(filter(None, (numbers, self.unstated)))

    def _side(self, figures: tuple[float, ...]) -> int:
        """On which side of no effect the claim is: 1 above, -1 below, 0 where it does not say."""
        if self.no_effect is None:
            return 0
        difference = statistics.fmean(figures) - self.no_effect
        if self.holds in ("at least", "at most"):
            bound = 1 if self.holds == "at least" else -1
            return bound if bound * difference >= 0 else 0  # a bound on the other side claims no effect
        return (difference > 0) - (difference < 0)

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
        """The verdict as a table cell."""
        where = f" ({', '.join(self.settings)})" if self.settings else ""
        return self.state + where + (f"{';' if self.good else ':'} {self.why}" if self.why else "")


def shown(number: tuple[float, ...], unit: str) -> str:
    """A figure, or both ends of a range, with its unit."""
    if unit == "x":
        return " to ".join(f"{each:.2f}x" for each in number)
    if unit.startswith("share"):
        return " to ".join(f"{100 * each:.1f}" for each in number) + " %"
    return " to ".join(f"{each:.3g}" for each in number) + f" {unit}"


def _counted(count: float | None, name: str) -> str:
    return f"an unknown number of {name}" if count is None else f"{count:,.0f} {name}"


def together(verdicts: Mapping[str, Verdict], argument: str = "") -> Verdict:
    """Verdict on a claim about several settings: the one furthest from reproduced, and the settings without it.

    argument  why a contradicted claim cannot hold; it is added to the verdict

    Settings that were not run say nothing; one that was run and gave no number (a method that diverged, say) does.
    Both numbers are named if there is only one setting.
    """
    if len(verdicts) == 1:
        return next(iter(verdicts.values()))
    judged = {name: verdict for name, verdict in verdicts.items() if verdict.state != "not run here"}
    # What was measured where the claim does not hold says nothing beside what was measured where it does.
    here = {name: verdict for name, verdict in judged.items() if verdict.state != "other setting"}
    judged = here or judged
    if not judged:
        return Verdict("not run here", why=next((verdict.why for verdict in verdicts.values() if verdict.why), ""))
    worst = max(judged.values(), key=lambda verdict: STATES.index(verdict.state))
    if worst.state == "other setting":  # whatever came out in any of them
        return Verdict(worst.state, why=worst.why)
    why = argument if worst.state == "contradicted" else ""
    return Verdict(worst.state, why=why, settings=tuple(name for name, verdict in judged.items() if not verdict.good))
