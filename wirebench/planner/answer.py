"""The answer of `wirebench advise`: the order of its rows, and three lines.

  free               whole gradients, in 16 bits or better merged
  nearly free        compositions whose worst seed loses no more than the tolerance
  fastest at a cost  of the others that were trained to an end; for a language model, the lowest loss at equal time

A line without such a composition is NOTHING or NO_LOWER.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wirebench.planner.accuracy import Accuracies, Ended, Standing, is_exact, ratio
from wirebench.planner.candidate import WORTHWHILE, Candidate, Speedup, place, speedup
from wirebench.planner.compositions import DENSE
from wirebench.planner.dense import reached

CASTS = ("fp16", "bf16")
"""Compressors that send every gradient in 16 bits."""
NOTHING = "nothing beats the line above"
AT_A_COST, AT_EQUAL_TIME = "fastest at a cost", "lowest loss at equal time"
"""Names of the third line: where accuracy is measured per epoch alone, and where also dense training of equal time."""
NO_LOWER = "nothing has a lower loss than the lines above"


@dataclass(frozen=True)
class Line:
    """One answer: a composition, or why there is none.

    key  in the JSON; name: in print
    """

    key: str
    name: str
    advice: Candidate | None
    nothing: str = ""


@dataclass(frozen=True)
class Judge:
    """What is known of each composition's training, and what it comes to beside dense training.

    plain       dense training as DistributedDataParallel has it
    dense       the best composition of dense training in every step
    density_of  at which a compressor works
    on_noise    compressors whose time is known on noise alone
    tolerance   points, or percent of a loss
    """

    accuracies: Accuracies
    plain: Candidate
    dense: Candidate
    density_of: Callable[[str], float | None]
    on_noise: Sequence[str]
    tolerance: float

    def standing(self, each: Candidate) -> Standing:
        """The standing of a composition, from its trainings."""
        if each.compressor in self.on_noise:
            return Standing.UNKNOWN
        return self.accuracies.standing(each, self.density_of(each.compressor), self.tolerance)

    def reason(self, each: Candidate) -> str | None:
        """Why a composition is not recommended; None where it may be."""
        standing, ended = self.standing(each), self.accuracies.of(each)
        if standing < Standing.TOO_MUCH:
            return None
        if standing is Standing.TOO_MUCH and ended is not None:
            return f"ended at {ended.mean} {ended.measure.unit}, beyond {self._limit(ended)}"
        untrained = self.accuracies.untrained(each, self.density_of(each.compressor))
        return untrained or "was timed on noise alone"

    def _limit(self, ended: Ended) -> str:
        return ended._replace(points=-self.accuracies.too_much).mean

    def gain(self, each: Candidate) -> Speedup:
        """Speed-up over dense training with DistributedDataParallel's schedule."""
        return speedup(each, self.plain)

    def in_time(self, each: Candidate) -> tuple[float, bool] | None:
        """Its loss over the loss of the best dense training that took no longer; False: an upper bound of this ratio.

        None if its loss, or dense training's, is not known.
        """
        ended, dense = self.accuracies.of(each), self.accuracies.dense
        points = 0.0 if is_exact(each) else None if ended is None else ended.points
        if points is None or not dense:
            return None
        best, within = reached(dense, each.expected_seconds, self.dense.expected_seconds, self.dense.found.alone)
        return ratio(points) / best, within

    def key(self, each: Candidate) -> tuple[float, ...]:
        """Sort key: within the tolerance by speed, beyond it by loss at equal time.

        Compositions beyond the tolerance without such a loss are ordered by speed, too.
        """
        standing, in_time = self.standing(each), self.in_time(each)
        by_loss = standing in (Standing.COSTS, Standing.TOO_MUCH) and in_time is not None
        return standing, in_time[0] if by_loss and in_time else 0.0, place(each)

    def lines(self, every: Sequence[Candidate]) -> list[Line]:
        """The three answers, of all compositions."""
        by = sorted(every, key=self.key)
        within = [each for each in by if self.standing(each) is Standing.WITHIN]
        costs = [each for each in by if self.standing(each) is Standing.COSTS]
        free = [each for each in within if is_exact(each) or (each.compressor in CASTS and not each.local)]
        lossy = [each for each in within if each not in free]
        last, no_last = (AT_EQUAL_TIME, NO_LOWER) if self.accuracies.dense else (AT_A_COST, NOTHING)
        kinds = (
            ("free", "free", free, "nothing beats DDP's schedule of dense gradients"),
            ("nearly_free", "nearly free", lossy, NOTHING),
            ("fastest_at_a_cost", last, costs, no_last),
        )
        above, lines = [self.plain], []
        for key, name, those, nothing in kinds:
            best = next(iter(those), None)
            if best is not None and self._beats(best, above):
                lines.append(Line(key, name, best))
                above.append(best)
            else:
                lines.append(Line(key, name, None, nothing))
        return lines

    def _beats(self, each: Candidate, above: Sequence[Candidate]) -> bool:
        """Whether it is faster than these by what is worth while; what costs more: has a lower loss at equal time."""
        if self.standing(each) is Standing.COSTS and (mine := self.in_time(each)) is not None:
            return mine[0] < min(math.inf if (one := self.in_time(other)) is None else one[0] for other in above)
        return all(each.expected_seconds < WORTHWHILE * other.expected_seconds for other in above)


def best_of(every: Sequence[Candidate], judge: Judge) -> list[Candidate]:
    """Each compressor's best composition, without local steps and with them, in order."""
    found: dict[tuple[str, bool], Candidate] = {}
    for each in sorted(every, key=judge.key):
        found.setdefault((each.compressor, bool(each.local)), each)
    return list(found.values())


def dense_of(every: Sequence[Candidate], plain: Candidate) -> Candidate:
    """The fastest composition of dense training in every step; DistributedDataParallel's where none was tried."""
    exact = [each for each in every if is_exact(each)]
    assert plain.compressor == DENSE
    return min(exact, key=lambda each: each.expected_seconds, default=plain)
