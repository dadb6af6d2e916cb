"""What was measured on a side of a predicted break-even, and whether that is as predicted."""

import statistics
from pathlib import Path
from typing import NamedTuple

from suite.planner.advice import WORTHWHILE
from suite.studies.break_even.sides import Side
from suite.studies.claim import Claim, Verdict
from suite.studies.published import load
from suite.studies.trust import TURNS

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
        spread = WORTHWHILE * self.ratios[0], WORTHWHILE * self.ratios[-1]
        return self.claim.judge(WORTHWHILE * self.dense / self.lossy, spread)

    @property
    def ratios(self) -> list[float]:
        """Of each turn, by size: the dense step over the compressed one; of TURNS or more without both extremes."""
        ratios = sorted(dense / lossy for dense, lossy in zip(self.dense_turns, self.lossy_turns, strict=False))
        return ratios[1:-1] if len(ratios) >= TURNS else ratios

    @property
    def faster(self) -> str:
        """By how much, with the least and the largest of the turns that count."""
        between = [f"{100 * (each - 1):+.1f}" for each in (self.ratios[0], self.ratios[-1])]
        return f"{100 * (self.dense / self.lossy - 1):+.1f} %" + (
            f" [{between[0]} - {between[1]}]" if len(self.ratios) > 1 else ""
        )
