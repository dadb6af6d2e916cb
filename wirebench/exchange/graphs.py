"""A compressor's own work, captured in CUDA graphs: one for what it does between two requests, replayed in each step.

A kernel of a few microseconds takes Python longer to start than a GPU to run, and an exchange starts up to a dozen of
them for each bucket, while the backward pass wants the interpreter too. A graph starts them all by one call.

A graph repeats operations at addresses. So a bucket's gradient, the compressor's memories, its messages and the answers
stay where they were when the graph was captured. What comes from elsewhere is copied there first. No Python of the
compressor runs in a replayed step: whatever it would do otherwise in another step must not depend on Python.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import torch
from torch import Tensor

from wirebench.errors import UserError
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket, Layer
from wirebench.gradient.requests import Answer, Request, handed_over
from wirebench.utils.device_tables import keeping

OPTION = "engine.cuda_graphs"
WARM_UP = 2
"""Exchanges of a bucket that run as usual first. They make memories and tables, and compile kernels."""
Result = TypeVar("Result")


class Recorder(Protocol):
    """Makes the graphs of one exchange, in turn. They share memory, since they are replayed in that order."""

    def record(self, work: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """What replays `work`'s operations, and its result; nothing is done on the device before that is called."""
        ...


class CudaRecorder:
    """Captures in CUDA graphs. Other threads may use the device meanwhile."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """See Recorder."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()
        return graph.replay, result


class Graphs:
    """One rank's exchanges of its buckets, by graphs once they are captured; `exchange` is as `conformance.exchange`.

    recorder  makes a recorder for each bucket; tests have one that records on a CPU
    Steps that measure run as usual. A bucket is captured anew when the compressor's state lies elsewhere, as after
    `load_state_dict`. Replays move nothing: addresses are compared only after an exchange that was not replayed, and
    after the method was restored (`Method.restored`). Memory: the messages and the compressor's temporary vectors, and
    a copy of each answer that does not come in the message's own memory, for every bucket.
    Raises UserError for a compressor that cannot be captured.
    """

    def __init__(self, compressor: Method, recorder: Callable[[], Recorder] = CudaRecorder) -> None:
        if compressor.uncaptured:
            raise _refused(compressor, compressor.uncaptured)
        self.compressor, self._recorder = compressor, recorder
        innermost = conformance.unwrapped(compressor)
        assert isinstance(innermost, Method)
        self._method, self._usual = innermost, 0
        """The method inside all wrappers; beginnings and ends of exchanges that were not replayed."""
        self._of: dict[int, _Captured] = {}

    def forget(self) -> None:
        """Free all graphs: buckets are cut anew."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # a graph may still be running
        self._of.clear()

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """The exchange of a bucket: as usual, captured, or replayed."""
        if world.measuring or not bucket.grad.numel():
            return (yield from self._counted(conformance.exchange(self.compressor, bucket, world)))
        known = self._of.get(bucket.index)
        same = known is not None and (known.layers is bucket.layers or known.layers == bucket.layers)
        if known is not None and (not same or self._is_stale(known)):
            self.forget()
            known = None
        if known is None:
            known = self._of[bucket.index] = _Captured(bucket.layers)
        if known.steps:
            return (yield from known.replay(bucket))
        known.runs += 1
        context: Any = world if known.runs == 1 else _AnyStep(world, self.compressor)
        exchange = conformance.exchange(self.compressor, bucket, context)
        if known.runs <= WARM_UP:
            return (yield from self._counted(known.run(exchange, _at_once)))
        return (yield from self._counted(self._capture(known, exchange, bucket)))

    def _counted(self, exchange: Exchange) -> Exchange:
        """An exchange that is not replayed, and may move the compressor's state."""
        self._usual += 1
        average = yield from exchange
        self._usual += 1
        return average

    def _is_stale(self, known: "_Captured") -> bool:
        """Whether a bucket is captured with a state that lay elsewhere."""
        now = self._method.restored, self._usual
        if not known.steps or known.checked == now:
            return False
        known.checked = now
        return known.state != _addresses(self.compressor)

    def _capture(self, known: "_Captured", exchange: Exchange, bucket: Bucket) -> Exchange:
        before, recorder = _addresses(self.compressor), self._recorder()

        def captured(work: Callable[[], _Part]) -> _Part:
            try:
                with keeping(known.tables):
                    replay, part = recorder.record(work)
            except UserError:
                raise
            except RuntimeError as error:
                raise _refused(self.compressor, str(error).partition("\n")[0]) from error
            replay()
            known.steps.append(_Step(replay, part.request))
            return part

        average = yield from known.run(exchange, captured)
        if _addresses(self.compressor) != before:
            raise _refused(self.compressor, "a step leaves its state in other memory than the step before")
        known.grad, known.average, known.state = bucket.grad, average, before
        return average


class _Part(NamedTuple):
    """What a part of an exchange ends with: a request, or None and the average."""

    request: Request | None
    average: Tensor | None


class _Step(NamedTuple):
    """A captured part of an exchange: its graph, and its request."""

    replay: Callable[[], None]
    request: Request | None


Runs = Callable[[Callable[[], _Part]], _Part]


class _Captured:
    """One bucket's exchange.

    runs    exchanges that have begun
    steps   its captured parts; none before it is captured
    grad    where the graphs read the gradient; average: what the exchange returned
    state    addresses of the compressor's state
    checked  what `Graphs` had counted when these were compared last
    tables   tables on the device that graphs read
    """

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.layers, self.runs = layers, 0
        self.steps: list[_Step] = []
        self.grad = self.average = torch.empty(0)
        self.state: list[int] = []
        self.checked = -1, -1
        self.tables: list[Any] = []
        self._answers: list[list[Tensor]] = []
        """By request, where its answer is read."""

    def run(self, exchange: Exchange, runs: Runs) -> Exchange:
        """Advance an exchange, each part by `runs`; from the second time on its answers come in the same memory."""
        answer, number = None, 0
        while True:
            request, average = runs(partial(_advance, exchange, answer))
            if request is None:
                assert average is not None
                return average
            answer = self._settled(number, request, (yield request), runs is not _at_once)
            number += 1

    def replay(self, bucket: Bucket) -> Exchange:
        """The exchange of another step's gradient."""
        if bucket.grad.data_ptr() != self.grad.data_ptr():
            self.grad.copy_(bucket.grad)
        for number, (replay, request) in enumerate(self.steps):
            replay()
            if request is not None:
                self._write(number, _listed((yield request)))
        return self.average

    def _settled(self, number: int, request: Request, answer: Answer, capturing: bool) -> Answer:
        """The answer of a request, as the compressor gets it: in memory of ours, but where it is the message itself."""
        given, own = _listed(answer), {each.data_ptr() for each in handed_over(request)}
        in_place = all(each.data_ptr() in own for each in given)
        if number == len(self._answers):
            self._answers.append(given if in_place else _room_for(given))
        elif in_place and capturing:
            self._answers[number] = given
        if in_place:
            return answer
        self._write(number, given)
        mine = self._answers[number]
        return mine[0] if isinstance(answer, Tensor) else mine

    def _write(self, number: int, given: Sequence[Tensor]) -> None:
        """Copy an answer to where it is read, unless it is there."""
        mine = self._answers[number]
        if [each.shape for each in given] != [each.shape for each in mine]:
            raise UserError(f"{OPTION}: an answer has another length than in the steps before; set it to false")
        moved = [(to, each) for to, each in zip(mine, given, strict=True) if to.data_ptr() != each.data_ptr()]
        if moved:
            torch._foreach_copy_([to for to, _ in moved], [each for _, each in moved])


class _AnyStep:
    """A context without what differs from step to step: a method that reads that is refused."""

    def __init__(self, world: ExchangeContext, compressor: Method) -> None:
        self.rank, self.size, self.seed, self.measuring = world.rank, world.size, world.seed, False
        self._compressor = compressor

    @property
    def step(self) -> NoReturn:
        """Refused."""
        raise _refused(self._compressor, "with these options it reads the step's number")

    @property
    def epoch(self) -> NoReturn:
        """Refused."""
        raise _refused(self._compressor, "with these options it reads the epoch's number")

    def shared_rng(self, *key: int | str, device: torch.device | str = "cpu") -> NoReturn:
        """Refused."""
        raise _refused(self._compressor, "with these options it draws on the host")


def _at_once(work: Callable[[], _Part]) -> _Part:
    return work()


def _advance(exchange: Exchange, answer: Answer) -> _Part:
    try:
        return _Part(exchange.send(answer), None)
    except StopIteration as stop:
        return _Part(None, stop.value)


def _listed(answer: Answer) -> list[Tensor]:
    return [] if answer is None else [answer] if isinstance(answer, Tensor) else list(answer)


def _room_for(answers: Sequence[Tensor]) -> list[Tensor]:
    """Vectors like these; of one length at equal distances, where kernels read them without a copy."""
    if len({(each.shape, each.dtype) for each in answers}) == 1:
        return list(torch.stack(list(answers)).unbind())
    return [each.clone() for each in answers]


def _addresses(compressor: Method) -> list[int]:
    return [each.data_ptr() for each in compressor.state_dict().values()]


def _refused(compressor: Method, reason: str) -> UserError:
    name = conformance.name_of(compressor)
    return UserError(f"{OPTION}: {name!r} cannot be captured: {reason}; set it to false")
