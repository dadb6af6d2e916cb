"""The contract of a communication scheduler: which layers share a message, and when it goes."""

from collections.abc import Sequence
from typing import ClassVar, Protocol

from wirebench.schedule import Cost, LayerCost, Mode

__all__ = ["Cost", "LayerCost", "Mode", "Scheduler"]


class Scheduler(Protocol):
    """A pure rule, called at the start, again after profiling where it needs one, and by the simulator.

    needs_profile  the rule reads `backward_seconds` and `cost`
    mode           when messages are sent, and by whom (wirebench/schedule.py)
    """

    needs_profile: ClassVar[bool]
    mode: ClassVar[Mode]

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """Contiguous groups of positions that cover `layers` (in backward order) in order.

        `cost(numel)` is the seconds of one exchange of that many elements; its start-up time is `cost(0)`.
        """
        ...
