"""Advancing exchanges: requests are served, compressing is bracketed, all ranks go round by round."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from wirebench.exchange.advance import Exchange, advance, run
from wirebench.gradient.requests import Gather, Request, Sum


class Waited:
    """A handle that notes when it is waited for."""

    wire_bytes = 0

    def __init__(self, log: list[str], name: str) -> None:
        self.log, self.name = log, name

    def wait(self) -> str:
        self.log.append(f"wait {self.name}")
        return f"answer to {self.name}"


def rounds(log: list[str], name: str, count: int) -> Generator[Waited, Any, list[str]]:
    answers = []
    for number in range(count):
        log.append(f"start {name}{number}")
        answers.append((yield Waited(log, f"{name}{number}")))
    return answers


def test_all_ranks_start_a_round_before_any_waits():
    log: list[str] = []
    results = run([rounds(log, "a", 2), rounds(log, "b", 2)])
    assert log == [
        "start a0", "start b0", "wait a0", "wait b0", "start a1", "start b1", "wait a1", "wait b1",
    ]  # fmt: skip
    assert results == [[f"answer to {name}{number}" for number in range(2)] for name in "ab"]


def test_no_round_at_all_is_fine():
    assert run([rounds([], "a", 0), rounds([], "b", 0)]) == [[], []]
    assert run([]) == []


def test_ranks_that_disagree_on_the_number_of_rounds_are_noticed():
    with pytest.raises(AssertionError, match="different numbers of rounds"):
        run([rounds([], "a", 2), rounds([], "b", 1)])


def two_rounds(grad: Tensor) -> Exchange:
    first = yield Sum(grad)
    second = yield Gather(first + 1)
    return second[0] + second[1]


def serve(request: Request) -> Generator[Waited, Any, Any]:
    """Sums double, gathers bring the tensor twice; two handles each."""
    yield Waited([], "first")
    yield Waited([], "second")
    return 2 * request.tensor if isinstance(request, Sum) else [request.tensor, request.tensor]  # type: ignore[union-attr]


def test_every_request_is_served_and_answered():
    (result,) = run([advance(two_rounds(torch.ones(2)), serve)])
    assert result.tolist() == [6.0, 6.0]


def test_the_compressors_own_work_is_bracketed_and_the_network_is_not():
    log: list[str] = []

    @contextmanager
    def compressing() -> Iterator[None]:
        log.append("(")
        yield
        log.append(")")

    def logged(request: Request) -> Generator[Waited, Any, Any]:
        log.append(type(request).__name__)
        return (yield from serve(request))

    run([advance(two_rounds(torch.ones(1)), logged, compressing)])
    assert log == ["(", ")", "Sum", "(", ")", "Gather", "(", ")"]
