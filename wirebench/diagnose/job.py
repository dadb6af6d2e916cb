"""What a job's profiler files say beside the evidence that every run has."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

EXCEPT = 8
"""Of this number of a rank's steps, one may be unlike the others in a finding about all of them."""
DDP, FSDP, HOROVOD, OTHER = "ddp", "fsdp", "horovod", "other"
FRAMEWORKS = {DDP: "DDP", FSDP: "FSDP", HOROVOD: "Horovod", OTHER: "a loop of its own"}


def steadily(by_step: Iterable[float]) -> float:
    """What a rank's steps reach, but for one of EXCEPT: what is more in some steps only is no habit of the rank."""
    ordered = sorted(by_step)
    return ordered[len(ordered) // EXCEPT]


class ClockOffset(NamedTuple):
    """How far a rank's clock is ahead of the first file's, by the ends of the collectives that both have.

    offset  seconds, the median
    spread  seconds between which and which the middle eight of ten lie
    ends    how many collectives
    """

    rank: int
    offset: float
    spread: float
    ends: int


class Arrival(NamedTuple):
    """When a rank comes to the collectives of a step.

    last    share of the collectives at which it came last
    held    seconds of a step that the other ranks wait for it, exposed
    waited  seconds of a step that it waits for the others, exposed
    by_step  `held` of each step; the same steps of all ranks
    """

    rank: int
    last: float
    held: float
    waited: float
    by_step: tuple[float, ...]


class SizeClass(NamedTuple):
    """The collectives of a step of one kind and of similar size, the mean over ranks and steps.

    least, most  bytes of the class of sizes; most None: without an upper end
    number, num_bytes  of a step
    seconds      on the network, without waiting for a late rank
    exposed      seconds that a step waits for them, waiting for a late rank included
    bus          bytes that a rank sends over those seconds; None where unknown
    """

    kind: str
    least: int
    most: int | None
    number: float
    num_bytes: float
    seconds: float
    exposed: float
    bus: float | None


class RecordedJob(NamedTuple):
    """A job that was recorded by PyTorch's profiler.

    framework    one of FRAMEWORKS
    steps        that are read of each rank, the least
    first        the first rank's file, for commands
    loads        whether the loop has a DataLoader
    left_out     whole steps of a file, the most, that exchange nothing or have no backward pass, and are not read
    passes       backward passes of a step; quiet: how many of them sum no gradients, since the loop accumulates them
    rows         for each rank and step its seconds by phase, and the GPU's gaps
    buckets      bytes of each gradient message of a step, in backward order
    merge        elements of the messages of the planner's merge, merge_gain: seconds of a step that it saves; () and 0
                 where nothing is known of it
    break_evens  bytes per second that a rank sends, by compressor: below them it takes less time than it saves
    """

    framework: str
    steps: int
    first: str
    loads: bool
    left_out: int = 0
    passes: int = 1
    quiet: int = 0
    rows: Sequence[Mapping[str, Any]] = ()
    clocks: Sequence[ClockOffset] = ()
    arrivals: Sequence[Arrival] = ()
    sizes: Sequence[SizeClass] = ()
    buckets: tuple[int, ...] = ()
    merge: tuple[int, ...] = ()
    merge_gain: float = 0.0
    break_evens: Mapping[str, float] = {}

    def arrival(self, rank: int) -> Arrival | None:
        """The arrival of a rank; None where the files do not say it."""
        return next((each for each in self.arrivals if each.rank == rank), None)

    def as_json(self) -> dict[str, Any]:
        """The job as JSON values."""
        return {
            **self._asdict(),
            "rows": list(self.rows),
            "clocks": [each._asdict() for each in self.clocks],
            "arrivals": [each._asdict() for each in self.arrivals],
            "sizes": [each._asdict() for each in self.sizes],
            "break_evens": dict(self.break_evens),
        }
