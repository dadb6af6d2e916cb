"""What a schedule is made of: layers with their costs, groups of them, and when their messages may start."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Literal, NamedTuple, Protocol

Mode = Literal["overlapped", "after_backward", "split", "elastic", "outer", "native"]
"""When and by whom messages are sent.

overlapped      each as soon as its last gradient is there
after_backward  all when the backward pass is done
split           as `overlapped`, but only a plan's reduce-scatter; its all-gather follows after the backward pass, under
                the next forward pass (DeAR)
elastic         weights travel instead of gradients (easgd)
outer           differences of weights travel, once in many steps (DiLoCo)
native          by the engine's own synchroniser: DistributedDataParallel or hvd.DistributedOptimizer
"""


class OuterRule(Protocol):
    """Settings of a scheduler of mode `outer`, besides its groups, which are the fragments (schedulers/outer.py)."""

    every: int
    fragments: int
    rate: float
    momentum: float
    nesterov: bool
    delay: int
    keep: float

    def starts(self, fragment: int, step: int) -> bool:
        """Whether the fragment is sent after this step, the first being 0."""
        ...


class LayerCost(NamedTuple):
    """A layer as a scheduler sees it: its name, its elements, and the seconds its part of the backward pass takes."""

    name: str
    numel: int
    backward_seconds: float = 0.0


Cost = Callable[[int], float]
"""cost(numel): seconds of one exchange of `numel` elements; its start-up time is cost(0)."""


def ready_times(layers: Sequence[LayerCost]) -> list[float]:
    """Seconds from the start of the backward pass until each layer's gradient is there."""
    return list(accumulate(layer.backward_seconds for layer in layers))


class Duration(NamedTuple):
    """Seconds of a bucket's exchange.

    seconds       of all of it; under a `split` schedule, up to the end of its first sum's reduce-scatter
    copy_seconds  under a `split` schedule, of the all-gather and all that follows it; else 0
    """

    seconds: float
    copy_seconds: float = 0.0
