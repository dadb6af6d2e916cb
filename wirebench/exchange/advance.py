"""Advance exchanges: serve what a compressor requests, and wait round by round.

Three generators are stacked: a compressor's exchange yields requests, the executor turns each request into rounds and
yields a handle per round, and `run` (or a driver's own loop) waits for the handles. So no lower layer ever blocks, and
the same compressor code serves two settings. In a communication thread one rank waits for its own rounds. Virtual
workers share one process, and every rank must have posted a round before any of them waits for it.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from torch import Tensor

from wirebench.comm.base import Handle
from wirebench.gradient.requests import Answer, Request

Exchange = Generator[Request, Any, Tensor]
"""A compressor's exchange: yields requests, is sent their answers, returns the average."""
Serve = Callable[[Request], Generator[Handle, Any, Answer]]
"""RequestExecutor.serve: yields a handle per round, is sent what its `wait` returned, returns the request's answer."""
Steps = Generator[Handle, Any, Tensor]
"""An exchange with its requests served: yields a handle per round, returns the average."""
Result = TypeVar("Result")


def advance(
    exchange: Exchange, serve: Serve, compressing: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Steps:
    """One rank's exchange with every request served: yields a handle per round, returns the averaged gradient.

    The compressor's own work between requests runs inside `compressing()`, so that it can be timed.
    """
    answer = None
    while True:
        # Served outside of this block: what a request waits for the network is not the compressor's time.
        with compressing():
            try:
                # None starts a generator; it is also the answer of a Reduce on all ranks but one.
                request = exchange.send(answer)
            except StopIteration as stop:
                return stop.value
        answer = yield from serve(request)


def run(ranks: Sequence[Generator[Handle, Any, Result]]) -> list[Result]:
    """Advance all ranks of this process together, round by round, and return their results in order.

    With one rank this is the loop of a communication thread, with all ranks of a world it is the lockstep of virtual
    workers.
    """
    results: dict[int, Result] = {}
    answers: list[Any] = [None] * len(ranks)
    while True:
        # All ranks post their round before any of them waits: a virtual worker's wait reads what the others posted.
        handles: list[Handle] = []
        for place, steps in enumerate(ranks):
            try:
                handles.append(steps.send(answers[place]))
            except StopIteration as stop:
                results[place] = stop.value
        if not handles:
            return [results[place] for place in range(len(ranks))]
        # An exchange that ends early would leave the others waiting for its messages.
        assert len(handles) == len(ranks), "the ranks' exchanges make different numbers of rounds"
        answers = [handle.wait() for handle in handles]
