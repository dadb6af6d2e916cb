"""What was measured on a side of a predicted break-even, and whether that is as predicted."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from papers.break_even.sides import Side
from papers.claim import Claim, Verdict
from papers.estimate import Estimate, ratio_of_turns
from papers.published import load
from wirebench.planner.advice import WORTHWHILE

CLAIMS = load(Path(__file__).parent).claims


class Seen(NamedTuple):
    """A side, and the seconds of a step that were measured: each turn's median, by its number."""

    side: Side
    dense_turns: Mapping[str, float]
    lossy_turns: Mapping[str, float]

    @property
    def margin(self) -> float:
        """How far the compressed step is below the step that would pay, as a share of the dense step."""
        return WORTHWHILE - 1 / self.ratio.value

    @property
    def claim(self) -> Claim:
        """The claim that the compressor pays where the planner predicts it, or that it does not elsewhere."""
        return CLAIMS["pays_below" if self.side.pays else "pays_not_above"]

    @property
    def ratio(self) -> Estimate:
        """The dense step over the compressed one, turn by turn."""
        found = ratio_of_turns(self.dense_turns, self.lossy_turns)
        assert found is not None
        return found

    @property
    def verdict(self) -> Verdict:
        """On the claim: 1 is where it begins to pay."""
        return self.claim.judge(self.ratio.mapped(lambda ratio: WORTHWHILE * ratio))

    @property
    def faster(self) -> str:
        """The gain in speed in percent, with its interval."""
        return self.ratio.mapped(lambda ratio: 100 * (ratio - 1)).words("{:+.1f} %", "{:+.1f}")
