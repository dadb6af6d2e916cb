"""What was measured of FlexReduce: all-reduces by layout and size, epochs by layout, and calls counted from plans.

The paper's baseline, NCCL's all-reduce, is a ring: here `ring` is our ring over the same transport, and `native` the
engine's own all-reduce. What a ring's time becomes at best (ideal) is `ideal_saving`.
"""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from papers.claim import Claim, Verdict
from papers.estimate import Estimate, ratio_of_turns
from papers.published import load
from wirebench.collectives.parts.flexreduce_calls import calls, calls_bound, calls_per_learner
from wirebench.errors import UserError
from wirebench.record.collective_results import AllReduceResult
from wirebench.topology.tree import Topology

PUBLISHED = load(Path(__file__).parent)
CLAIMS = PUBLISHED.claims
TRAININGS = "end_to_end"
"""Name of the trainings' folder; a run is TRAININGS/LAYOUT/COLLECTIVE-TURN."""
LAYOUTS: tuple[str, ...] = tuple(PUBLISHED.tables["layouts"]["names"])
COLLECTIVES = ("ring", "native", "blueconnect", "flexreduce")
SMALL_ITEMS: int = PUBLISHED.tables["sizes"]["small"]
"""Fig. 4 (a); Fig. 4 (b) has the large size."""
EPOCH_IMAGES: int = PUBLISHED.tables["epoch"]["images"]
COUNTED_ITEMS = 12_000_000
"""The size for which calls are counted, large enough that no call rounds to nothing."""


class Calls(NamedTuple):
    """Reduce calls into one learner.

    mean, top  over learners and levels, and at the root alone; most: of one learner at one level
    bound      the largest at the root (Eq. 12): the paper's 3 or 4
    """

    mean: float
    top: float
    most: int
    bound: int


class TrainingRow(NamedTuple):
    """One run of section V-B's training; `step_seconds` is its median step, `gradient_bytes` a step's in fp32."""

    layout: str
    collective: str
    turn: int
    step_seconds: float
    size: int
    batch_size: int
    gradient_bytes: float

    @property
    def epoch_seconds(self) -> float:
        """Time of the paper's images."""
        return self.step_seconds * EPOCH_IMAGES / (self.batch_size * self.size)


@dataclass(frozen=True)
class Latencies:
    """The cells of one layout at one size, by collective; `None` answers where a collective was not measured."""

    layout: str
    items: int
    cells: Mapping[str, AllReduceResult]

    @property
    def topology(self) -> Topology:
        """The layout as a tree."""
        return Topology.parse(self.layout)

    @property
    def ideal(self) -> float:
        """The largest share of a ring's time that can be saved."""
        return ideal_saving(self.layout)

    def seconds(self, name: str) -> float | None:
        """The median repeat's."""
        return self.cells[name].median if name in self.cells else None

    def ratio(self, one: str, other: str) -> Estimate | None:
        """Seconds of `one` over seconds of `other`, turn by turn: what slows the machine down slows both."""
        if one not in self.cells or other not in self.cells:
            return None
        first, second = self.cells[one].seconds, self.cells[other].seconds
        if len(first) != len(second):
            raise UserError(
                f"{self.layout}, {self.items} floats: {one} has {len(first)} repeats and {other} {len(second)}; "
                "repeats are compared turn by turn, so both need the same number"
            )
        return ratio_of_turns(*({str(turn): each for turn, each in enumerate(those)} for those in (first, second)))

    def saving(self, one: str, other: str) -> Estimate | None:
        """The share of `other`'s time that `one` saves."""
        ratio = self.ratio(one, other)
        return None if ratio is None else ratio.mapped(_saved)

    @property
    def reached(self) -> float | None:
        """FlexReduce's saving over the ring, as a share of the ideal saving."""
        saving = self.saving("flexreduce", "ring")
        return None if saving is None else saving.value / self.ideal

    @property
    def of_ideal_speed(self) -> Estimate | None:
        """Ideal time over FlexReduce's time, the ideal being the ring's with the ideal saving: the paper's 90-99 %."""
        ratio = self.ratio("flexreduce", "ring")
        return None if ratio is None else ratio.mapped(lambda each: (1 - self.ideal) / each if each else math.inf)

    @property
    def verdict(self) -> Verdict:
        """Whether FlexReduce reaches the ideal saving."""
        saving = self.saving("flexreduce", "ring")
        claim = saving_claim(len(self.topology.machines))
        return claim.judge(saving, expected=self.ideal)

    def link_use(self, name: str, bits_per_second: float) -> float | None:
        """The plan's bytes over the busiest machine's link and direction, over what the link could carry in that time.

        Close to 1 (headers take 0.7 % of jumbo frames): the link is the limit, not the processors.
        """
        machines = self.cells[name].machines if name in self.cells else None
        if machines is None:
            return None
        busiest = max(max(sent, received) for _, _, sent, received in machines)
        return busiest * 8 / (bits_per_second * self.cells[name].median)


def tolerance(topology: Topology) -> float:
    """Share by which a saving may miss the ideal one of as many machines."""
    return saving_claim(len(topology.machines)).tolerance


def saving_claim(machines: int) -> Claim:
    """The paper's claim about layouts of this number of machines."""
    return next(claim for claim in CLAIMS.values() if claim.about.get("machines") == machines)


def ideal_saving(layout: str) -> float:
    """The share of a ring's time that FlexReduce saves at best: 1 - ((M-1)/M) / ((N-1)/N).

    For N ranks on M machines with alpha = 0 and local links that cost nothing: the ring carries (N-1)/N of the bytes
    across every machine's link, FlexReduce (M-1)/M.
    """
    topology = Topology.parse(layout)
    size, machines = topology.size, len(topology.machines)
    return 1 - ((machines - 1) / machines) / ((size - 1) / size)


def link_seconds(layout: str, num_bytes: float, bits_per_second: float) -> tuple[float, float]:
    """Seconds that an all-reduce of `num_bytes` keeps a machine's link busy in a direction: the ring's, FlexReduce's.

    Of payload alone: start-ups and headers come on top.
    """
    size = Topology.parse(layout).size
    by_ring = 2 * (size - 1) / size * num_bytes * 8 / bits_per_second
    return by_ring, by_ring * (1 - ideal_saving(layout))


def is_even(layout: str) -> bool:
    """All machines have as many ranks: there BlueConnect can factor the tree."""
    return Topology.parse(layout).degrees is not None


def rows(cells: Iterable[AllReduceResult]) -> list[Latencies]:
    """Cells by layout (in the paper's order) and size; UserError for a layout that the paper has not."""
    cells_of: dict[tuple[int, int], dict[str, AllReduceResult]] = {}
    for cell in cells:
        if cell.layout not in LAYOUTS:
            raise UserError(f"layout {cell.layout}: the paper has {', '.join(LAYOUTS)}")
        cells_of.setdefault((LAYOUTS.index(cell.layout), cell.items), {})[cell.label] = cell
    return [Latencies(LAYOUTS[place], items, cells_of[place, items]) for place, items in sorted(cells_of)]


def main_items(measured: Sequence[Latencies]) -> int:
    """The size that most layouts have; of several the largest; 0 without any."""
    layouts = Counter(row.items for row in measured)
    return max(layouts, key=lambda items: (layouts[items], items), default=0)


def count_calls(layout: str) -> Calls:
    """FlexReduce's reduce calls; broadcasts are as many."""
    topology = Topology.parse(layout)
    levels = calls(topology, COUNTED_ITEMS)
    most = max(max(Counter(call.dst for call in level).values()) for level in levels)
    means = calls_per_learner(topology, COUNTED_ITEMS)
    bound = max(calls_bound(topology, rank, len(levels) - 1) for rank in topology.ranks)
    return Calls(statistics.mean(means), means[-1], most, bound)


def training(layout: str, collective: str, turn: int, record: Mapping[str, Any]) -> TrainingRow:
    """What a run's record says; UserError for a run without counted steps, or of another size than the layout."""
    seconds, size = record["step_seconds"]["median"], record["world_size"]
    if record["status"] != "finished" or seconds is None:
        raise UserError(f"{layout}, {collective}, turn {turn}: the run is {record['status']} or too short to count")
    if size != Topology.parse(layout).size:
        raise UserError(f"{layout}, {collective}, turn {turn}: the run has {size} workers")
    batch, gradient_bytes = record["config"]["data"]["batch_size"], record["bytes_per_step"]["dense"]
    return TrainingRow(layout, collective, turn, seconds, size, batch, gradient_bytes)


def epoch_seconds(runs: Iterable[TrainingRow], layout: str, collective: str) -> float | None:
    """The median over turns."""
    seconds = [run.epoch_seconds for run in runs if (run.layout, run.collective) == (layout, collective)]
    return statistics.median(seconds) if seconds else None


def faster(runs: Sequence[TrainingRow], layout: str, one: str, other: str) -> Estimate | None:
    """The share of `other`'s time per epoch that `one` saves, over the turns that both have; None without any."""
    times = {(run.collective, run.turn): run.epoch_seconds for run in runs if run.layout == layout}
    turns = [turn for name, turn in times if name == one and (other, turn) in times]
    ratio = ratio_of_turns(*({str(turn): times[name, turn] for turn in turns} for name in (one, other)))
    return None if ratio is None else ratio.mapped(_saved)


def _saved(ratio: float) -> float:
    return 1 - ratio


def time_per_item(measured: Iterable[Latencies], layout: str, name: str) -> Estimate | None:
    """Time per item at the largest size over that at the one before, of the paper's range; None with fewer than two."""
    those = [row for row in measured if row.layout == layout and row.items >= SMALL_ITEMS]
    cells = [row.cells[name] for row in those if name in row.cells]
    if len(cells) < 2:
        return None
    before, last = ({str(turn): each / cell.items for turn, each in enumerate(cell.seconds)} for cell in cells[-2:])
    # Sizes do not take turns: what slowed one down need not have slowed the other.
    return ratio_of_turns({f"last {turn}": each for turn, each in last.items()}, before)
