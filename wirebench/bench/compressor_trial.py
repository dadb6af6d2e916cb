"""One rank's own work in an exchange, timed part by part: no network, no other ranks.

The exchange is advanced by hand. Each request is answered at once from the rank's own message, as if every rank had
sent the same, so there is as much to decode as among P ranks. The time of answering is not counted, except for merging:
the root of a tree merges ceil(log2 P) messages, which is the method's own work. Merging a message with itself is less
work than merging it with another rank's, whose entries lie at other places. So it is merged with messages of earlier
steps.
"""

import time
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Compressor
from wirebench.gradient.flat import Bucket
from wirebench.gradient.phases import Phase, recording
from wirebench.gradient.requests import Gather, Merge, Request, Route, handed_over
from wirebench.record.compressor_results import PARTS, Part
from wirebench.telemetry.timers import timer_for

Earlier = dict[int, list[Tensor]]
"""What was handed over to be merged, by the round of a step; the newest first."""

_WHOLE = "whole"


class ExchangeWork(NamedTuple):
    """One exchange: seconds of each part, and bytes that the rank handed over."""

    seconds: dict[Part, float]
    message_bytes: int
    result: Tensor


class Stopwatch:
    """Seconds by name; of nested spans only the outermost counts.

    On a GPU it reads events of the stream, so that timing adds no synchronisation. On a CPU with one thread it reads
    the process's CPU time, which leaves out other processes. With several threads it reads the wall clock.
    """

    def __init__(self, device: torch.device) -> None:
        one_thread = torch.get_num_threads() == 1
        self.clock = "stream" if device.type == "cuda" else "processor" if one_thread else "wall"
        self._timer = timer_for(device)
        self._now = time.process_time if self.clock == "processor" else self._timer.mark
        self._spans: list[tuple[str, Any, Any]] = []
        self._inside = False

    def span(self, name: str) -> AbstractContextManager[None]:
        """Around a part of the work."""
        return nullcontext() if self._inside else _TimedSpan(self, name)

    def whole(self) -> AbstractContextManager[None]:
        """Around all parts: spans inside of it count for themselves."""
        return _TimedSpan(self, _WHOLE, closes=False)

    def take(self) -> dict[str, float]:
        """Seconds of every name since the last call; waits for the GPU."""
        self._timer.synchronize()
        spent: dict[str, float] = {}
        for name, begin, end in self._spans:
            spent[name] = spent.get(name, 0.0) + self._timer.seconds(begin, end)
        self._spans.clear()
        return spent


class _TimedSpan(AbstractContextManager[None]):
    """A class, since a generator would cost a method with many small phases more."""

    def __init__(self, watch: Stopwatch, name: str, closes: bool = True) -> None:
        self.watch, self.name, self.closes = watch, name, closes

    def __enter__(self) -> None:
        self.watch._inside = self.closes
        self.begin = self.watch._now()

    def __exit__(self, *_: object) -> None:
        self.watch._spans.append((self.name, self.begin, self.watch._now()))
        self.watch._inside = False


def seconds_of(watch: Stopwatch, work: Callable[[], object]) -> float:
    """Seconds that `work` takes."""
    watch.take()
    with watch.whole():
        work()
    return watch.take()[_WHOLE]


def run_exchange(
    subject: Compressor, bucket: Bucket, world: ExchangeContext, watch: Stopwatch, earlier: Earlier | None = None
) -> ExchangeWork:
    """One exchange of rank `world.rank`, all of its requests answered from its own messages.

    earlier  messages of earlier steps, which stand for other ranks' messages in merges; this step's are added
    """
    watch.take()
    earlier = {} if earlier is None else earlier
    exchange = subject.exchange(bucket, world)
    recorder = _Recorder(watch)
    answer: Any = None
    message_bytes = 0
    with recording(recorder):
        while True:
            with watch.whole():
                request = _next(exchange, answer)
            if isinstance(request, Tensor):
                break
            recorder.round += 1
            message_bytes += sum(tensor.numel() * tensor.element_size() for tensor in handed_over(request))
            if isinstance(request, Merge):
                answer = merge_alone(request, world, watch, earlier.setdefault(recorder.round, []))
            else:
                answer = answer_alone(request, world)
    spent = watch.take()
    seconds = {part: spent.get(part, 0.0) for part in PARTS}
    phases = sum(seconds.values()) - seconds["merge"]  # merging happens outside of what the exchange itself takes
    seconds["other"] = max(spent[_WHOLE] - phases, 0.0)
    return ExchangeWork(seconds, message_bytes, request)


class _Recorder:
    """Times phases; what is selected in a later round than the first selection is called `recover`."""

    def __init__(self, watch: Stopwatch) -> None:
        self.watch = watch
        self.round = 0
        self._selected: int | None = None

    def __call__(self, name: Phase) -> AbstractContextManager[None]:
        """A span."""
        if name != "select":
            return self.watch.span(name)
        if self._selected is None:
            self._selected = self.round
        return self.watch.span("select" if self.round == self._selected else "recover")


def _next(exchange: Generator[Request, Any, Tensor], answer: Any) -> Request | Tensor:
    """The next request, or the result."""
    try:
        return exchange.send(answer)
    except StopIteration as stop:
        result = stop.value
        assert isinstance(result, Tensor), "an exchange returns a tensor"
        return result


def answer_alone(request: Request, world: ExchangeContext) -> Any:
    """What the network would answer if every rank had sent what this one does; for a sum, if the others had zeros."""
    assert not isinstance(request, Merge), "a merge takes time"
    if isinstance(request, Gather):
        return [request.tensor] * world.size
    if isinstance(request, Route):
        return [request.parts[world.rank]] * world.size
    return request.tensor


def merge_alone(request: Merge, world: ExchangeContext, watch: Stopwatch, earlier: list[Tensor]) -> Tensor:
    """What a tree's root merges, if the others have sent what this rank did in the steps before; notes its message."""
    merged, message = request.message.clone(), request.message.clone()
    rounds = (world.size - 1).bit_length()
    for theirs in [*earlier, *[message] * rounds][:rounds]:
        with watch.span("merge"):
            merged = request.combine(merged, theirs)
    earlier[:] = [message, *earlier][:rounds]
    return merged
