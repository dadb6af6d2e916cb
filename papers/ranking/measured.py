"""What was ranked on an emulated cluster beside what was measured there since, and the verdict on the first choice."""

import datetime
import math
from pathlib import Path

from scipy.stats import kendalltau

from papers import published, rows
from papers.claim import Verdict, together
from papers.ranking import ranked
from papers.ranking.ranked import Ranking
from papers.rows import Row, times_faster
from wirebench.errors import UserError

CLAIM = published.load(Path(__file__).parent).claims["first_is_best"]


class Measured:
    """What was ranked on a cluster beside what was measured there since.

    rows      of the compositions that ran, the fastest first; none that diverged or has no counted step
    missing   labels of the others; began: whether the first choice ran, and diverged
    first     the planner's first choice, None where it did not run; shortest: the fastest row
    over      first over shortest; over_each: over each of the rows, by its label
    """

    def __init__(self, folder: Path) -> None:
        self.ranking: Ranking = ranked.load(folder)
        self.predicted = ranked.labels(self.ranking.best)
        made = [_since(row, self.ranking.utc) for row in rows.load(folder) if row.label in self.predicted]
        self.rows = sorted((row for row in made if row.runs and row.step_seconds and not row.diverged), key=_seconds)
        known = {row.label: row for row in self.rows}
        if not self.rows:
            raise UserError(f"{folder}: has no run with a counted step that began after its ranking")
        self.began = any(row.label == self.ranking.best[0].label and row.diverged for row in made)
        self.missing = [label for label in self.predicted if label not in known]
        self.first, self.shortest = known.get(self.ranking.best[0].label), self.rows[0]
        self.over = times_faster(self.shortest, self.first) if self.first else None
        each = {row.label: times_faster(row, self.first) for row in self.rows} if self.first else {}
        self.over_each = {label: ratio for label, ratio in each.items() if ratio}

    @property
    def verdict(self) -> Verdict:
        """On the first choice: decided where all that was ranked ran, or it did not."""
        if self.over is None and not self.began:
            return CLAIM.judge(None)._replace(why="the planner's first choice did not run")
        if self.over is None:
            return Verdict("not reproduced", None, "the planner's first choice did not run to its end")
        if self.missing:
            missing = f"{len(self.missing)} of {len(self.predicted)} have no times"
            return Verdict("not decidable", self.over.value, missing)
        return together(CLAIM.judge_each(self.over_each))

    @property
    def here(self) -> str:
        """The measurement as text."""
        if self.over is None:
            return "no time"
        if self.first is self.shortest:
            return "1.00x, the shortest"
        return f"{self.over.words('{:.3f}x', '{:.3f}')} of {self.shortest.label}"

    @property
    def said(self) -> str:
        """The verdict and the order as sentences."""
        places = [place for place, label in enumerate(self.predicted) for row in self.rows if row.label == label]
        seconds = [row.step_seconds for label in self.predicted for row in self.rows if row.label == label]
        order = kendalltau(places, seconds).statistic if len(places) > 1 else math.nan
        tau = "" if math.isnan(order) else f" Kendall's tau of places and steps is {order:.2f}."
        return f"The planner's first choice is {self.ranking.best[0].label}: {self.here}.{tau}"


def _since(row: Row, utc: str) -> Row:
    """The row's runs that began after the ranking and counted a step: others do not show what it is worth."""
    ranked_at = datetime.datetime.fromisoformat(utc)
    began = ((run, datetime.datetime.fromisoformat(run.record["environment"]["utc"])) for run in row.runs)
    return Row(row.label, tuple(run for run, at in began if at >= ranked_at and run.has("step_seconds", "median")))


def _seconds(row: Row) -> float:
    return row.step_seconds or math.inf
