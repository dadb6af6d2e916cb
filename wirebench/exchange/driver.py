"""What a driver of exchanges is.

A scheduler cuts the model into buckets; its driver decides what travels, when, and who updates the model. All that
depends on the kind of a schedule is asked of the driver's class: what it goes with, how a step of it is simulated,
which collective it takes by default. So a schedule of a new kind is two files, its rule and its driver.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from wirebench.collectives.execution.executor import RequestLog
from wirebench.collectives.native import is_engines_own
from wirebench.collectives.plan import Collective
from wirebench.collectives.wire import NO_PLAN, wire_of
from wirebench.comm.engine import Engine
from wirebench.errors import UserError
from wirebench.exchange.lane import Lane
from wirebench.exchange.pipeline import Passes, Starts, Step, in_turn
from wirebench.gradient.conformance import DENSE, name_of
from wirebench.gradient.contract import Method
from wirebench.gradient.schedule import Duration
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.timeline import Timeline

GRADIENTS = "gradients"
WITH_OPTIMIZER = "wirebench.synchronise(model, compressor, scheduler, optimizer=optimizer)"


@dataclass(frozen=True)
class Parts:
    """The parts that a driver is to go with.

    clip          optimizer.clip; 0: the gradient's norm is not clipped
    health_every  output.health_every; 0: no exchange is measured
    own_loop      the training loop is the user's own (`synchronise`), with or without `optimizer` and `scaler`
    """

    compressor: Method
    collective: Collective
    clip: float = 0.0
    health_every: int = 0
    own_loop: bool = False
    optimizer: bool = True
    scaler: bool = False

    @property
    def has_plan(self) -> bool:
        """Whether the collective is a plan of ours; the engine's own is none."""
        return not is_engines_own(self.collective)


def refuse_wire(compressor: Method, collective: Collective) -> None:
    """UserError where a collective with wire formats is to serve a compressor that codes its messages itself.

    What a format cuts off is in no residual of the compressor's, and its sums need not be of gradients: they are of
    sketches, factors, votes.
    """
    wire = wire_of(collective)
    if wire is None:
        return
    if is_engines_own(wire.inner):
        raise UserError(NO_PLAN)
    if (name := name_of(compressor)) != DENSE:
        raise UserError(
            f"collective.wire: rounds the gradients of compressor {DENSE}; {name!r} codes its own messages, which "
            "another rounding would spoil"
        )


@dataclass(frozen=True)
class Workers:
    """The workers of this process, for whom a driver is made; lanes, models and optimizers in the same order.

    lanes         none for a driver without messages of ours
    accumulation  backward passes of a step
    unused        names of parameters that take no part in the loss
    """

    engine: Engine
    lanes: Sequence[Lane]
    models: Sequence[nn.Module]
    optimizers: Sequence[Any]
    clock: Clock
    timeline: Timeline
    accumulation: int = 1
    unused: Collection[str] = ()


class Driver:
    """Turns the local gradients of a step into averaged ones, or keeps the workers' weights together in another way.

    The methods that are no class methods stand in the order in which a training loop calls them.

    lanes        this process's lanes
    holders      what a rank saves and restores of its exchanges, by lane: the compressor, or its own weights with it
    averaged     called with a step's number, once, when all of the step's average is there; of `halves` alone

    starts       when a bucket's message may start
    halves       a sum's reduce-scatter and its all-gather run apart, and the update comes with the next forward pass
    exchanges    what travels, in words
    messages     they are ours; False: an engine's own, which can be neither counted nor delayed
    can_hold     it has `holding` and `take_durations` (profiling/calibration.py)
    updates      the model's weights are not the optimizer's work alone
    collective   the default where neither the user nor the compressor's paper names one
    own_weights  the key of the rank's own weights in a saved state; "": all ranks have the same weights
    """

    starts: ClassVar[Starts] = "gradient"
    halves: ClassVar[bool] = False
    exchanges: ClassVar[str] = GRADIENTS
    messages: ClassVar[bool] = True
    can_hold: ClassVar[bool] = False
    updates: ClassVar[bool] = False
    collective: ClassVar[str] = "native"
    own_weights: ClassVar[str] = ""

    averaged: Callable[[int], None]

    @classmethod
    def accepts(cls, parts: Parts) -> str | None:
        """None, or why it does not go with these parts: a clause whose subject is the scheduler."""
        if parts.own_loop and cls.updates and not parts.optimizer:
            return f"updates the model itself; make the optimizer first, and write {WITH_OPTIMIZER}"
        if parts.own_loop and cls.updates and parts.scaler:
            return "updates the model itself, which a GradScaler does not allow"
        return None

    @classmethod
    def make(cls, workers: Workers, scheduler: Any) -> "Driver":
        """The driver of these workers under a scheduler that names this class; UserError if it has none."""
        raise NotImplementedError

    @classmethod
    def simulate(cls, scheduler: Any, passes: Passes, groups: Sequence[range], durations: Sequence[Duration]) -> Step:
        """A step on paper; durations: of each bucket's exchange, in the order of `groups`."""
        return in_turn(passes, groups, durations, cls.starts)

    @classmethod
    def rhythm(cls, scheduler: Any) -> tuple[int, int]:
        """Steps between two exchanges of a bucket, and from an exchange until it is applied."""
        return 1, 0

    @classmethod
    def notes(cls, scheduler: Any, steps: int) -> list[str]:
        """What may surprise the user of a run of `steps` steps, one line each."""
        return []

    @classmethod
    def fusion_mb(cls, scheduler: Any) -> float | None:
        """MiB of messages that the engine merges by itself; 0: none, so that our schedule counts; None: its default."""
        return 0.0

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self.holders: Sequence[Any] = [lane.compressor for lane in lanes]

    def begin(self, step: int, epoch: int) -> None:
        """Before the first forward pass of a step: forget the gradients of the step before."""
        for lane in self.lanes:
            lane.begin(step, epoch)

    def enable_sync(self) -> None:
        """Before the forward pass of the last micro-batch: its backward pass completes the gradients."""

    def finish(self) -> None:
        """After that backward pass: return when every parameter's `.grad` is the average over ranks."""
        raise NotImplementedError

    def take_logs(self) -> list[list[RequestLog]]:
        """The requests that were served since the last call, a log for each rank of this process."""
        return [lane.server.take_log() for lane in self.lanes]

    def stepping(self) -> AbstractContextManager[None]:
        """A context for the optimizer's step."""
        return nullcontext()

    def met(self, step: int) -> int:
        """The last step, up to `step`, which this rank has done, that all ranks have begun for certain."""
        return step

    def settle(self) -> None:
        """Before anything but a training step reads the model: finish what is still under way of the last step."""

    def evaluation_view(self) -> AbstractContextManager[None]:
        """A context for evaluation and checkpoints: the model has the parameters to evaluate, e.g. EASGD's centre."""
        return nullcontext()

    def close(self) -> None:
        """After the last step: detach from the model, end threads."""
        for lane in self.lanes:
            lane.detach()
