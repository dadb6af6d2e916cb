"""The contract of a communication scheduler: which layers share a message."""

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Protocol


class LayerCost(NamedTuple):
    """A layer as a scheduler sees it: its name, its elements, and the seconds its part of the backward pass takes."""

    name: str
    numel: int
    backward_seconds: float = 0.0


Cost = Callable[[int], float]


class Scheduler(Protocol):
    """A pure rule, called at the start, again after profiling where it needs one, and by the simulator.

    needs_profile  the rule reads `backward_seconds` and `cost`
    after_backward exchanges start only when the whole backward pass is done
    native         the gradients go to the engine's own synchroniser instead (DistributedDataParallel or
                   hvd.DistributedOptimizer)
    """

    needs_profile: ClassVar[bool]
    after_backward: ClassVar[bool]
    native: ClassVar[bool]

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """Contiguous groups of positions that cover `layers` (in backward order) in order.

        `cost(numel)` is the seconds of one exchange of that many elements; its start-up time is `cost(0)`.
        """
        ...
