"""The runs of a folder beside their forecast, and the verdicts on the planner's claims."""

import datetime
import functools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from papers import published
from papers.claim import Verdict, together
from papers.estimate import Estimate, mean, ratio_of_turns
from papers.findings import Finding, of_rows
from papers.planner import forecast
from papers.planner.experiments import METHODS
from papers.planner.forecast import BEST, LISTED, ORDER, SIDES
from papers.rows import NEEDS, Row, cluster, emulated_setting, mean_step
from papers.significance import tau_of
from wirebench.errors import UserError
from wirebench.planner.candidate import WORTHWHILE
from wirebench.record import notes, recorded
from wirebench.record.notes import NotedRun
from wirebench.record.rules import moment

CLAIMS = published.load(Path(__file__).parent).claims
NEAR = CLAIMS["near"].tolerance
"""A forecast that is off by no more than this share is a good one."""
LEAST = 3
"""Methods that make an order."""
NOT_FORECAST = ("data", "update")
"""Phases that a forecast of the best compositions and of break-evens leaves out."""


class Compared(NamedTuple):
    """A composition: its runs, its forecast, and the seconds of a step of each turn, by the turn's number.

    own  the measured seconds of what was forecast
    """

    row: Row
    forecast: forecast.Expected | None
    turns: Mapping[str, float]
    own: float

    @property
    def run(self) -> NotedRun:
        """The first of its runs."""
        return self.row.runs[0]

    @property
    def measured(self) -> float:
        """Median seconds of a step."""
        return statistics.median(self.turns.values())

    @property
    def error(self) -> float | None:
        """Forecast over measured seconds, less 1; None without a forecast."""
        return None if self.forecast is None else self.forecast.seconds / self.own - 1


class Scored:
    """A folder's compositions beside what was forecast of them, in the order of the forecast, of a list by name.

    Runs that began before the forecast, that diverged, or that counted no step do not count. UserError for a folder
    without runs, and for runs of several settings.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.forecast = folder, forecast.load(folder)
        self.kind = self.forecast.kind if self.forecast else LISTED
        self.lines = list(self._listed() if self.kind == LISTED else self._repeated())
        if not self.lines:
            since = " that began after its forecast" if self.forecast else ""
            raise UserError(f"{folder}: has no run with a counted step{since}")

    def _listed(self) -> Iterator[Compared]:
        """The runs of several processes at any depth: each forecasts its own step."""
        if not self.folder.is_dir() and recorded.at(self.folder) is None:
            raise UserError(f"{self.folder}: is no folder")
        before = {} if self.forecast is None else {row.name: row for row in self.forecast.rows}
        since = self.forecast.at if self.forecast else None
        for run in recorded.below(self.folder):
            if run.record.get("prediction") and (not since or _began(run) >= since):
                inside = str(run.folder.relative_to(self.folder))
                name = self.folder.resolve().name if inside == "." else inside
                seconds = run.record["prediction"]["measured_seconds"]
                yield Compared(Row(name, (run,)), before.get(name), {"0": seconds}, seconds)

    def _repeated(self) -> Iterator[Compared]:
        """The rows of the forecast, with the runs of all turns."""
        assert self.forecast is not None
        since = self.forecast.at
        made = [run for run in recorded.noted(self.folder, NEEDS) if not since or _began(run) >= since]
        notes.refuse_mixed(self.folder, {run.folder.name: self._setting(run) for run in made})
        for row in self.forecast.rows:
            runs = tuple(run for run in made if run.composition == row.name and self._seconds(run))
            if runs and not any(run.diverged for run in runs):
                turns = {run.turn: self._seconds(run) or math.nan for run in runs}
                label = row.composed.label if self.kind == BEST else row.name
                found = Row(label, runs)
                less = 0.0 if self.kind == ORDER else sum(found.median("phases", each) or 0.0 for each in NOT_FORECAST)
                yield Compared(found, row, turns, statistics.median(turns.values()) - less)

    def _setting(self, run: NotedRun) -> dict[str, object]:
        """The settings that all runs of an experiment share."""
        return {**emulated_setting(run), **({"link": None} if self.kind == SIDES else {})}

    def _seconds(self, run: NotedRun) -> float | None:
        """A step: the median, or of an order the mean of the counted ones, since most steps exchange nothing."""
        return mean_step(run) if self.kind == ORDER else run.has("step_seconds", "median")

    @property
    def runs(self) -> list[NotedRun]:
        """The runs of all lines."""
        return [run for line in self.lines for run in line.row.runs]

    @property
    def about(self) -> str:
        """A title: the experiment's folder, trace or cluster."""
        if self.kind == LISTED:
            return self.folder.resolve().name
        if self.kind == SIDES:
            return f"{self.runs[0].has('config', 'model', 'trace')} on {self.runs[0].note['hosts']} hosts"
        return cluster([line.row for line in self.lines])

    @property
    def ranked(self) -> bool:
        """Whether the forecast is an order."""
        return self.kind in (BEST, ORDER)

    @property
    def missing(self) -> list[str]:
        """Labels of what has no time, or was not forecast."""
        there = {line.forecast.name for line in self.lines if line.forecast}
        if self.forecast is None or self.kind in (LISTED, SIDES):
            return []
        named = METHODS if self.kind == ORDER else self.forecast.names
        return [name if self.kind == ORDER else forecast.composition(name).label for name in named if name not in there]

    @functools.cached_property
    def shortest(self) -> Compared:
        """The line with the shortest step."""
        return min(self.lines, key=lambda line: line.measured)

    @property
    def tau(self) -> float:
        """Kendall's tau of the planner's order and the measured one; NaN for a single line."""
        return self._tau([line.measured for line in self.lines])

    def _tau(self, seconds: Sequence[float]) -> float:
        return tau_of(range(len(self.lines)), seconds)

    @property
    def common(self) -> list[str]:
        """The turns that all lines have."""
        return sorted(set.intersection(*(set(line.turns) for line in self.lines)))

    @property
    def sides(self) -> "list[Side]":
        """Both compositions of each side of which both have a time."""
        by = {line.row.label: line for line in self.lines}
        names = dict.fromkeys(label.rpartition("-")[0] for label in by)
        both = ((by.get(f"{name}-dense"), by.get(f"{name}-lossy"), name) for name in names)
        return [Side(dense, lossy, *_side(name)) for dense, lossy, name in both if dense and lossy]

    def limits(self) -> dict[str, tuple[float, float | None]]:
        """By compressor the rate in Gbit/s below which it pays, forecast and measured.

        Measured: where the margin vanishes, on a line over the logarithm of the rate; None where it does not.
        """
        assert self.forecast is not None
        found = {}
        for name, limit in self.forecast.given["break_even_gbit"].items():
            points = sorted((side.factor * limit, side.margin) for side in self.sides if side.compressor == name)
            crossing = None
            for (low, before), (high, after) in reversed(list(pairwise(points))):
                if crossing is None and before > 0 >= after:
                    crossing = math.exp(math.log(low) + before / (before - after) * math.log(high / low))
            if points:
                found[name] = (limit, crossing)
        return found

    def findings(self) -> list[Finding]:
        """What was found of the claims about this kind of forecast."""
        of = {LISTED: self._near, BEST: self._first, SIDES: self._pays, ORDER: self._order}
        return list(of[self.kind]())

    def _near(self) -> Iterator[Finding]:
        """The steps that runs forecast themselves, all together."""
        errors = own_errors(self.lines)
        verdict = together({name: CLAIMS["near"].judge(1 + error) for name, error in errors.items()})
        here = (
            f"{sum(map(near, errors.values()))} of {len(errors)} predictions, each by the run's own steps, are within "
            f"{100 * NEAR:.0f} %; the median error is {100 * statistics.median(map(abs, errors.values())):.1f} %, the "
            f"largest {100 * max(map(abs, errors.values())):.1f} %."
        )
        about = "" if self.folder.resolve().name == "prediction" else self.folder.resolve().name
        yield of_rows(CLAIMS["near"], here, verdict, [line.row for line in self.lines], about, needs="")

    def _first(self) -> Iterator[Finding]:
        """The planner's first choice over the shortest: nothing is decided before all that was ranked ran."""
        assert self.forecast is not None
        claim, name = CLAIMS["first_is_best"], self.forecast.names[0]
        first = next((line for line in self.lines if line.forecast and line.forecast.name == name), None)
        over = over_shortest(self, first) if first else None
        diverged = any(run.diverged and run.composition == name for run in recorded.directly_below(self.folder))
        if first is None or over is None:
            here = "no time"
            verdict = claim.judge(None)._replace(why="the planner's first choice did not run")
            if diverged:
                verdict = Verdict("not reproduced", None, "the planner's first choice did not run to its end")
        else:
            of = f"{over.words('{:.3f}x', '{:.3f}')} of {self.shortest.row.label}"
            here = "1.00x, the shortest" if first is self.shortest else of
            ordered = sorted(self.lines, key=lambda line: line.measured)
            each = {line.row.label: ratio_of_turns(first.turns, line.turns) for line in ordered}
            verdict = together(claim.judge_each({label: ratio for label, ratio in each.items() if ratio}))
            if self.missing:
                few = f"{len(self.missing)} of {len(self.forecast.rows)} have no times"
                verdict = Verdict("not decidable", over.value, few)
        yield self._finding("first_is_best", here, verdict, self.folder.name, self.lines)

    def _pays(self) -> Iterator[Finding]:
        """On each side, whether the compressor pays there as forecast: 1 is where it begins to pay."""
        for side in self.sides:
            name = "pays_below" if side.factor < 1 else "pays_not_above"
            verdict = CLAIMS[name].judge(side.gain.mapped(lambda ratio: WORTHWHILE * ratio))
            about = f"{self.folder.name}: {side.compressor} at {side.factor:g} of its break-even"
            yield self._finding(name, side.faster, verdict, about, (side.dense, side.lossy))

    def _order(self) -> Iterator[Finding]:
        """The mean tau of all turns, where all methods have a place."""
        name = self.folder.resolve().name
        if len(self.lines) < LEAST or name not in CLAIMS:
            return
        tau = mean([self._tau([line.turns[turn] for line in self.lines]) for turn in self.common] or [self.tau])
        here = f"{tau.words('{:.2f}')} of {len(self.lines)} methods; of median steps {self.tau:.2f}"
        verdict = CLAIMS[name].judge(tau)
        if self.missing:
            verdict = Verdict("not decidable", tau.value, f"without {', '.join(self.missing)}")
        yield self._finding(name, here, verdict, "", self.lines)

    def _finding(self, claim: str, here: str, verdict: Verdict, about: str, lines: Sequence[Compared]) -> Finding:
        found = of_rows(CLAIMS[claim], here, verdict, [line.row for line in lines], about)
        return replace(found, rules=(*found.rules, "commit")) if self.forecast and self.forecast.changed else found


class Side(NamedTuple):
    """A compressor on links of `factor` times its break-even, beside dense training."""

    dense: Compared
    lossy: Compared
    compressor: str
    factor: float

    @property
    def gain(self) -> Estimate:
        """The dense step over the compressed one, turn by turn."""
        found = ratio_of_turns(self.dense.turns, self.lossy.turns)
        assert found is not None
        return found

    @property
    def margin(self) -> float:
        """How far the compressed step is below the step that would pay, as a share of the dense step."""
        return WORTHWHILE - 1 / self.gain.value

    @property
    def faster(self) -> str:
        """The gain in speed in percent, with its interval."""
        return self.gain.mapped(lambda ratio: 100 * (ratio - 1)).words("{:+.1f} %", "{:+.1f}")

    @property
    def forecast(self) -> float:
        """The gain that was forecast."""
        assert self.dense.forecast is not None and self.lossy.forecast is not None
        return self.dense.forecast.seconds / self.lossy.forecast.seconds


def _side(name: str) -> tuple[str, float]:
    compressor, _, factor = name.rpartition("-")
    return compressor, float(factor)


def over_shortest(scored: Scored, line: Compared) -> Estimate | None:
    """A line's step over the shortest one, turn by turn."""
    return ratio_of_turns(line.turns, scored.shortest.turns)


def own_errors(lines: Sequence[Compared]) -> dict[str, float]:
    """The errors of the steps that runs of a list forecast themselves, by name."""
    return {line.row.label: line.run.record["prediction"]["error"] for line in lines}


def near(error: float) -> bool:
    """Whether a forecast that is off by this share is a good one."""
    return CLAIMS["near"].judge(1 + error).good


def _began(run: NotedRun) -> datetime.datetime:
    """When; a run that does not say it counts as made after all else, and breaks a rule of trust."""
    return moment(run.has("environment", "utc")) or datetime.datetime.max.replace(tzinfo=datetime.UTC)
