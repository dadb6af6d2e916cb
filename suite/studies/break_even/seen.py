"""What was measured on a side of a predicted break-even, and whether that is as predicted."""

import statistics
from pathlib import Path
from typing import NamedTuple

from suite.planner.rank import WORTHWHILE
from suite.studies.break_even.sides import Side
from suite.studies.claim import Claim, Verdict
from suite.studies.published import load

CLAIMS = load(Path(__file__).parent).claims


class Seen(NamedTuple):
    """A side, and the seconds of a step that were measured: each turn's median."""

    side: Side
    dense_turns: list[float]
    lossy_turns: list[float]

    @property
    def dense(self) -> float:
        """The median of the turns."""
        return statistics.median(self.dense_turns)

    @property
    def lossy(self) -> float:
        """The median of the turns."""
        return statistics.median(self.lossy_turns)

    @property
    def margin(self) -> float:
        """By how much the compressed step is below what would pay, as a share of the dense one."""
        return WORTHWHILE - self.lossy / self.dense

    @property
    def claim(self) -> Claim:
        """That it pays where the planner says so, or that it does not where not."""
        return CLAIMS["pays_below" if self.side.pays else "pays_not_above"]

    @property
    def verdict(self) -> Verdict:
        """On the claim: 1 is where it begins to pay."""
        spread = WORTHWHILE * min(self.ratios), WORTHWHILE * max(self.ratios)
        return self.claim.judge(WORTHWHILE * self.dense / self.lossy, spread)

    @property
    def ratios(self) -> list[float]:
        """Of each turn: the dense step over the compressed one."""
        return [dense / lossy for dense, lossy in zip(self.dense_turns, self.lossy_turns, strict=False)]

    @property
    def faster(self) -> str:
        """By how much, with the extremes of the turns."""
        between = [f"{100 * (each - 1):+.1f}" for each in (min(self.ratios), max(self.ratios))]
        return f"{100 * (self.dense / self.lossy - 1):+.1f} %" + (
            f" [{between[0]} - {between[1]}]" if len(self.ratios) > 1 else ""
        )
