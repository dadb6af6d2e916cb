"""Advance exchanges: the protocol that threads, virtual workers and the simulator share."""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeVar

from torch import Tensor

from wirebench.collectives.execution.executor import RequestLog
from wirebench.comm.base import Handle
from wirebench.gradient.requests import Answer, Request

Exchange = Generator[Request, Any, Tensor]
Serve = Callable[[Request], Generator[Handle, Any, Answer]]
Steps = Generator[Handle, Any, Tensor]
Result = TypeVar("Result")


class Synchroniser(Protocol):
    """What turns the local gradients of a step into averaged ones, in the order in which a train loop calls it."""

    def begin(self, step: int, epoch: int) -> None:
        """Before the first forward pass of a step: forget the gradients of the step before."""
        ...

    def enable_sync(self) -> None:
        """Before the forward pass of the last micro-batch: its backward pass completes the gradients."""
        ...

    def finish(self) -> None:
        """After that backward pass: return when every parameter's `.grad` is the average over ranks."""
        ...

    def take_logs(self) -> list[list[RequestLog]]:
        """What was served since the last call, to each rank of this process."""
        ...

    def stepping(self) -> AbstractContextManager[None]:
        """Around the optimizer's step."""
        ...

    def settle(self) -> None:
        """Before anything but a training step looks at the model: nothing of the last step is under way any more."""
        ...

    def evaluation_view(self) -> AbstractContextManager[None]:
        """While the model is evaluated or saved: its parameters are those that the run is about."""
        ...

    def close(self) -> None:
        """After the last step: detach from the model, end threads."""
        ...


def advance(
    exchange: Exchange, serve: Serve, compressing: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Steps:
    """One rank's exchange with every request served: yields a handle per round, returns the averaged gradient.

    The compressor's own work between rounds runs inside `compressing()`, so that it can be timed.
    """
    answer = None
    while True:
        with compressing():
            try:
                request = next(exchange) if answer is None else exchange.send(answer)
            except StopIteration as stop:
                return stop.value
        answer = yield from serve(request)


def run(ranks: Sequence[Generator[Handle, Any, Result]]) -> list[Result]:
    """Advance all ranks of this process together, round by round, and return their results in order.

    All ranks start a round before any of them waits for it. With one rank this is the loop of a communication thread,
    with all ranks of a world it is the lockstep of virtual workers.
    """
    results: dict[int, Result] = {}
    answers: list[Any] = [None] * len(ranks)
    while True:
        handles: list[Handle] = []
        for place, steps in enumerate(ranks):
            try:
                handles.append(steps.send(answers[place]))
            except StopIteration as stop:
                results[place] = stop.value
        if not handles:
            return [results[place] for place in range(len(ranks))]
        assert len(handles) == len(ranks), "the ranks' exchanges make different numbers of rounds"
        answers = [handle.wait() for handle in handles]
