"""The loop of wirebench bench compressors: memory first, then turns with copies beside them."""

import gc
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch

from wirebench.bench.compressor_memory import Memory, measure_memory
from wirebench.bench.compressor_trial import Earlier, Stopwatch, run_exchange, seconds_of
from wirebench.bench.inputs import BucketInputs, Size
from wirebench.costmodel.played_exchange import one_thread
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method
from wirebench.record.compressor_results import PARTS, CompressorResult, Part
from wirebench.telemetry.machines import LoadMeter
from wirebench.utils import this_machine
from wirebench.utils.heap import keep_freed_memory
from wirebench.utils.json_lines import rounded

SHARE_OF_MEMORY = 0.7
WARMUP, REPEATS = 3, 9
"""Usual steps that are left out, and turns that count."""


@dataclass(frozen=True)
class Contender:
    """Something to time: its name, how it is made, whether it is a rival."""

    name: str
    make: Callable[[], Method]
    rival: bool = False


def world_of(subject: Method, number: int, workers: int) -> ExchangeContext:
    """Rank 0's view of the step that is run as the `number`-th: where ranks take turns, always its own.

    A method that names a usual step has steps of several kinds, and always runs that one.
    """
    step = subject.usual_step or (number * workers if subject.takes_turns else number)
    return ExchangeContext(0, workers, step)


@dataclass
class _Turns:
    """What one contender's turns gave so far."""

    contender: Contender
    subject: Method
    memory: tuple[int, Memory]
    seconds: dict[Part, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    copies: list[float] = field(default_factory=list)
    handed_over: list[int] = field(default_factory=list)
    earlier: Earlier = field(default_factory=dict)

    def cell(self, size: Size) -> CompressorResult:
        """The result of all turns, with the digits that a file keeps, so that figures of both are one."""
        state_bytes, memory = self.memory
        return CompressorResult(
            method=self.contender.name,
            rival=self.contender.rival,
            model=size.model,
            items=size.numel,
            layers=len(size.layers),
            seconds={part: tuple(rounded(seconds)) for part, seconds in self.seconds.items()},
            copy_seconds=tuple(rounded(self.copies)),
            message_bytes=tuple(self.handed_over),
            state_bytes=state_bytes,
            held_bytes=memory.held,
            peak_bytes=memory.peak,
        )


class Bench:
    """Measures contenders at one size after the other; `cells` holds what was measured, also after Ctrl-C.

    workers  ranks that rank 0 counts as taking part; there is one process
    warmup   steps that are left out
    repeats  turns that count
    say      called with each line of progress
    """

    def __init__(
        self,
        device: torch.device,
        workers: int,
        warmup: int,
        repeats: int,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.device, self.workers, self.warmup, self.repeats, self.say = device, workers, warmup, repeats, say
        self.watch, self.load = Stopwatch(device), LoadMeter()
        self.cells: list[CompressorResult] = []

    def measure(self, size: Size, contenders: Sequence[Contender]) -> None:
        """Memory of every contender alone, then the turns, in as few groups as fit into memory."""
        # As in a training, whose steps find the memory that the one before has freed.
        keep_freed_memory()
        inputs = BucketInputs(size, self.device)
        memories: dict[str, tuple[int, Memory]] = {}
        for number, contender in enumerate(contenders, 1):
            self.say(f"{size.name}: memory {number}/{len(contenders)} {contender.name}")
            try:
                memories[contender.name] = self._memory(inputs, contender)
            except Exception as error:
                self._failed(size, contender, error)
        gc.collect()
        able = [contender for contender in contenders if contender.name in memories]
        groups = fitting([(each, memories[each.name][1]) for each in able], free_bytes(self.device) * SHARE_OF_MEMORY)
        for number, group in enumerate(groups, 1):
            self._take_turns(inputs, group, memories, f"{size.name}: group {number}/{len(groups)}")
            gc.collect()
        order = [contender.name for contender in contenders]
        self.cells.sort(key=lambda cell: order.index(cell.method) if cell.items == size.numel else -1)

    def _take_turns(
        self, inputs: BucketInputs, group: Sequence[Contender], memories: dict[str, tuple[int, Memory]], where: str
    ) -> None:
        """A B C, C B A, ...: what slows the machine down slows all of them."""
        running = {each.name: _Turns(each, each.make(), memories[each.name]) for each in group}
        try:
            for number in range(self.warmup + self.repeats):
                self.say(f"{where}, turn {number + 1 - self.warmup}/{self.repeats}")
                for turns in list(running.values())[:: 1 if number % 2 == 0 else -1]:
                    try:
                        self._turn(inputs, turns, number)
                    except Exception as error:
                        del running[turns.contender.name]
                        self._failed(inputs.size, turns.contender, error)
        finally:
            self.cells += [turns.cell(inputs.size) for turns in running.values() if turns.copies]

    def _turn(self, inputs: BucketInputs, turns: _Turns, number: int) -> None:
        """One step, a copy before and a copy after it."""
        bucket = inputs.bucket(number)
        before = seconds_of(self.watch, inputs.copy)
        world = world_of(turns.subject, number, self.workers)
        work = run_exchange(turns.subject, bucket, world, self.watch, turns.earlier)
        inputs.bucket(number)  # so that the caches are as they were before the first copy
        after = seconds_of(self.watch, inputs.copy)
        if number < self.warmup:
            return
        for part, seconds in work.seconds.items():
            turns.seconds[part].append(seconds)
        turns.copies.append((before + after) / 2)
        turns.handed_over.append(work.message_bytes)

    def _memory(self, inputs: BucketInputs, contender: Contender) -> tuple[int, Memory]:
        """Bytes of its state, and what it allocates; it must also give a sensible result."""
        kept: list[Method] = []

        def build() -> Callable[[], object]:
            subject = contender.make()
            kept.append(subject)
            numbers = itertools.count()
            earlier: Earlier = {}

            def step() -> None:
                number = next(numbers)
                bucket = inputs.bucket(number)
                work = run_exchange(subject, bucket, world_of(subject, number, self.workers), self.watch, earlier)
                if number == 0:
                    check_result(work.result, bucket.grad)

            return step

        memory = measure_memory(build, self.warmup, self.device)
        return sum(tensor.numel() * tensor.element_size() for tensor in kept[0].state_dict().values()), memory

    def _failed(self, size: Size, contender: Contender, error: Exception) -> None:
        lines = str(error).splitlines() or [""]
        text = f"{type(error).__name__}: {lines[0]}".removesuffix(": ")
        self.say(f"{size.name}: {contender.name} failed: {text}")
        self.cells.append(
            CompressorResult(contender.name, contender.rival, size.model, size.numel, len(size.layers), error=text)
        )


def timed_here(workers: int, sizes: Sequence[Size], contenders: Sequence[Contender]) -> list[CompressorResult]:
    """The results of these contenders on one thread of this CPU, at one size after the other up to one that fails.

    Of one thread the clock is the processor's, which does not count what other processes do.
    """
    with one_thread():
        bench = Bench(torch.device("cpu"), workers, WARMUP, REPEATS)
        for size in sizes:
            failed = {cell.method for cell in bench.cells if cell.error}
            if able := [each for each in contenders if each.name not in failed]:
                bench.measure(size, able)
    return bench.cells


def check_result(result: torch.Tensor, grad: torch.Tensor) -> None:
    """Raise ValueError unless the result is a finite vector as long as the gradient."""
    if result.shape != grad.shape:
        raise ValueError(f"the result has the shape {tuple(result.shape)}, the gradient {tuple(grad.shape)}")
    if not result.isfinite().all():
        raise ValueError("the result is not finite")


def fitting(able: Iterable[tuple[Contender, Memory]], room: float) -> list[list[Contender]]:
    """Contenders in groups, in order, so that what a group holds and its highest peak fit into `room` bytes.

    One that does not fit alone is tried alone.
    """
    groups: list[list[Contender]] = []
    held = highest = 0
    for contender, memory in able:
        held, highest = held + memory.held, max(highest, memory.peak - memory.held)
        if not groups or held + highest > room:
            groups.append([])
            held, highest = memory.held, memory.peak - memory.held
        groups[-1].append(contender)
    return groups


def free_bytes(device: torch.device) -> int:
    """Memory that can still be had."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return this_machine.free_memory_bytes()
