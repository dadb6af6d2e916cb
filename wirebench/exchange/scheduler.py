"""What a scheduler is: a rule that cuts the model, and the driver that sends what it makes."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from wirebench.errors import UserError
from wirebench.exchange.driver import Driver
from wirebench.exchange.overlapped import Overlapped
from wirebench.gradient.contract import Method
from wirebench.gradient.schedule import Cost, LayerCost


class Scheduler(ABC):
    """A pure rule, called at the start, again after profiling where it needs one, and by the simulator.

    needs_profile  the rule reads `backward_seconds` and `cost`
    driver         the class of the drivers that send its groups
    """

    needs_profile: ClassVar[bool] = False
    driver: ClassVar[type[Driver]] = Overlapped

    @abstractmethod
    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """Contiguous groups of positions that cover `layers` (in backward order) in order.

        `cost(numel)` is the seconds of one exchange of that many elements; its start-up time is `cost(0)`.
        """


class OneByOne(Scheduler):
    """A message for each layer."""

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """One group per layer."""
        return [range(i, i + 1) for i in range(len(layers))]


def first_cut(scheduler: Scheduler, layers: Sequence[LayerCost]) -> tuple[list[range], bool]:
    """The groups that a job begins with, and whether they are those to stay with."""
    # Layer by layer, as every scheduler may end up: until it is known what messages cost.
    known = not scheduler.needs_profile
    return (scheduler if known else OneByOne()).partition(layers, lambda numel: 0.0), known


def refuse_groups(compressor: Method, name: str, scheduler: str, groups: Sequence[range]) -> None:
    """UserError where a scheduler cuts the model into several buckets and the compressor needs it whole."""
    if compressor.whole_model and len(groups) > 1:
        raise UserError(
            f"scheduler.name: {scheduler!r} cuts the model into {len(groups)} buckets, but "
            f"{name!r} needs it whole: {compressor.whole_model}; single sends one message"
        )


def refuse_without_driver(scheduler: object, name: str) -> None:
    """UserError for an object that names no driver, as schedulers of version 0.1."""
    if not hasattr(scheduler, "driver"):
        raise UserError(
            f"scheduler.name: {name!r} has no driver: its base is Scheduler (wirebench/exchange/scheduler.py)"
        )
