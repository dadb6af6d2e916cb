"""Where the ranks are: so far, how many there are, in rank order."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Topology:
    """A cluster of `size` ranks, 0 to size - 1, neighbours in rank order."""

    size: int

    def __post_init__(self) -> None:
        assert self.size >= 1, f"a topology has at least one rank, got {self.size}"
