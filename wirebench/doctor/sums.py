"""What an all-reduce between the hosts took, and what is normal for it.

Two neighbours' messages, while all others are silent, say what the back end can do on a link. A ring of such messages
takes by the cost model what is normal for the all-reduce. Nothing here imports torch.
"""

from collections.abc import Mapping
from typing import NamedTuple

from wirebench.costmodel import formulas


class RankTimes(NamedTuple):
    """What one rank timed.

    start_up          seconds of a message of one number to a neighbour, one way
    bytes_per_second  of a long message to a neighbour, while all others are silent: of the slower neighbour
    add               seconds that it takes to add a byte to another one
    seconds           of the all-reduce
    busy              seconds of the processor in a second of the all-reduce, which this process had or waited for
    """

    start_up: float
    bytes_per_second: float
    add: float
    seconds: float
    busy: float


class SumTimes(NamedTuple):
    """An all-reduce of all hosts: its slowest rank and its slowest link.

    backend           "gloo" or "nccl"
    size, num_bytes   the number of ranks, and what is summed
    start_up, bytes_per_second, add, seconds, busy   as RankTimes; busy: by host
    """

    backend: str
    size: int
    num_bytes: int
    start_up: float
    bytes_per_second: float
    add: float
    seconds: float
    busy: Mapping[str, float]

    @property
    def bus_rate(self) -> float:
        """Bus bandwidth: bytes per second that each link carries each way, 2 (P - 1) / P of the message's."""
        return 2 * (self.size - 1) / self.size * self.num_bytes / self.seconds

    @property
    def normal_rate(self) -> float:
        """The bus bandwidth of a ring whose messages take as long as those that were timed alone.

        MG-WFBP, Table II, with the measured start-up time, seconds per byte and seconds per byte added.
        """
        line = formulas.ring(self.size, self.start_up, 1 / self.bytes_per_second, self.add)
        return 2 * (self.size - 1) / self.size * self.num_bytes / line.seconds(self.num_bytes)


def joined(backend: str, num_bytes: int, hosts: Mapping[str, RankTimes]) -> SumTimes:
    """What the all-reduce of these hosts took."""
    ranks = hosts.values()
    return SumTimes(
        backend, len(ranks), num_bytes, max(each.start_up for each in ranks),
        min(each.bytes_per_second for each in ranks), max(each.add for each in ranks),
        max(each.seconds for each in ranks), {host: each.busy for host, each in hosts.items()},
    )  # fmt: skip
