"""How long compressors work: measured on one machine in copies of a vector, scaled to another by its speed of copying.

A copy reads and writes every element once, so its time is the memory's limit; wirebench bench compressors measures
methods in copies. On a GPU most methods start more kernels than their data keeps busy (results/README.md), and copies
are a bad unit. There the unit is seconds. For another GPU the memory's part of them is scaled by the data sheets: an
estimate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.errors import UserError
from wirebench.gradient.flat import FLOAT_BYTES
from wirebench.record import compressor_results
from wirebench.record.compressor_results import PARTS, CompressorResult, Part
from wirebench.simulation.roofline import of_hardware
from wirebench.simulation.simulator import Compressing

_DATA = Path(__file__).parent / "data"
SHIPPED = _DATA / "rates_cpu.jsonl.gz"
"""Written by `wirebench study publish` from the records, like SHIPPED_GPU."""
SHIPPED_GPU = _DATA / "rates_gpu.jsonl.gz"
HANDLING_COPIES = 2
"""Copies of a replayed gradient: from noise (models/replay.py), and then into its bucket (exchange/lane.py)."""
GROWING: tuple[Part, ...] = ("decode", "merge")
"""Parts that take longer among more workers."""
ONE_HOP = "quantised_sum:form={}:feedback=false"
"""The method that codes one hop in a wire format and nothing beside it: `bench compressors --formats` measures it."""
CODING: tuple[Part, ...] = ("encode", "decode")
"""Its parts, which are the coding of a plan's messages, too."""
UNKNOWN_FORM = "how long coding in {} takes was not measured (wirebench bench compressors --formats)"
WITHOUT_FORM = f"{UNKNOWN_FORM}; --rates takes the file of its --json"


class _Cost(NamedTuple):
    """What a method's work costs; on a GPU in seconds instead of copies, and nothing fixed.

    fixed   seconds of an exchange whatever its size
    copies  (elements, cost in copies of a vector with this number of elements), by rising size: all work except
            decoding and merging
    decode  pairs of the same kind: decoding of the gathered messages
    merge   pairs of the same kind: combining of messages, one after the other, by a rank of the measured world
    spread  the fastest and the slowest tenth of its measured turns, divided by the cost used here
    memory  bytes per second of the memory of the GPU that was measured; None for a CPU, whose costs are in copies
    workers of the measurement
    """

    fixed: float
    copies: tuple[tuple[int, float], ...]
    decode: tuple[tuple[int, float], ...]
    merge: tuple[tuple[int, float], ...]
    spread: tuple[float, float]
    memory: float | None = None
    workers: int = 1


class Rates:
    """What every method's work costs, from a file of compressor results.

    A method that was measured with several options counts with the fewest. ONE_HOP counts as its format's coding alone.

    path              the file
    workers           world size of the measurement
    device            the GPU's name where one was measured, else ""
    bytes_per_second  memory traffic of a copy of the largest vector there, read and written
    cpu, utc          of that machine, as a record's environment describes it, and when; empty where the file does not
    """

    def __init__(self, path: Path = SHIPPED) -> None:
        measured = compressor_results.load(path)
        self.path = path
        self.workers = int(measured.header["workers"])
        self.device = str(measured.header.get("device") or "")
        if not measured.cells:
            raise UserError(f"{path}: has no cells")
        environment = measured.header.get("environment", {})
        self.cpu: dict[str, Any] = environment.get("cpu", {})
        self.utc = str(environment.get("utc") or "")
        largest = max(measured.cells, key=lambda cell: cell.items if cell.turns else 0)
        self.bytes_per_second = 2 * FLOAT_BYTES * largest.items / largest.copy if largest.turns else math.inf
        self._costs: dict[str, _Cost] = {}
        self.add(measured.cells, on_gpu=bool(self.device))

    def add(self, measured: Sequence[CompressorResult], *, on_gpu: bool = False) -> None:
        """Add other results for the same number of workers; rivals and failures do not count."""
        cells: dict[str, list[CompressorResult]] = {}
        for cell in measured:
            if not cell.rival and not cell.error:
                cells.setdefault(cell.method, []).append(cell)
        forms = _by_form(cells)
        # A label is the name and the given options. The shortest comes last, so that it is the one that stays.
        methods = [method for method in cells if method not in map(_one_hop, forms)]
        plainest = {name_of(method): cells[method] for method in sorted(methods, key=len, reverse=True)}
        optioned = {_words(method): results for method, results in cells.items() if name_of(method) != method}
        for name, results in {**plainest, **optioned}.items():
            by_size = sorted(results, key=lambda cell: cell.items)
            self._add(name, by_size, on_gpu)
        for form, results in forms.items():
            for part in CODING:
                self._add(_coding(form, part), [_alone(cell, part) for cell in results], on_gpu)

    def _add(self, name: str, by_size: Sequence[CompressorResult], on_gpu: bool) -> None:
        cost = _in_seconds(by_size)._replace(memory=self._memory()) if on_gpu else _cost(by_size)
        self._costs[name] = cost._replace(workers=self.workers)

    def _memory(self) -> float:
        known = of_hardware(self.device)
        return known.memory_gbs * 1e9 if known else self.bytes_per_second

    def take(self, others: "Rates") -> None:
        """Take what the others have measured, in place of these rates' own, with their device and workers."""
        self._costs |= others._costs

    @classmethod
    def shipped(cls, *, on_gpu: bool) -> "Rates":
        """Ours, of a GPU or of a CPU."""
        return cls(SHIPPED_GPU if on_gpu else SHIPPED)

    @property
    def gradient_seconds_per_byte(self) -> float:
        """Seconds per byte to make a replayed gradient and copy it into its bucket, on the measured machine."""
        return HANDLING_COPIES * 2 / self.bytes_per_second

    def knows(self, compressor: str) -> bool:
        """Whether the method was measured with these options: NAME, or NAME:key=value with keys in order."""
        return compressor in self._costs

    def times(self, compressor: str) -> bool:
        """Whether the method was measured, with these options or with its defaults, whose times count then."""
        return self._cost_of(compressor) is not None

    def _cost_of(self, compressor: str) -> "_Cost | None":
        return self._costs.get(compressor) or self._costs.get(name_of(compressor))

    def workers_of(self, compressor: str) -> int:
        """World size of the method's measurement; for an unknown one the file's."""
        cost = self._cost_of(compressor)
        return self.workers if cost is None else cost.workers

    def codes(self, form: str) -> bool:
        """Whether the coding in this wire format was measured."""
        return _coding(form, "encode") in self._costs

    def coding(self, bytes_per_second: float) -> "FormatCoding":
        """Seconds of coding in wire formats, on memory that moves `bytes_per_second`, for the cost model."""
        return FormatCoding(self, bytes_per_second)

    def spread(self, compressor: str) -> tuple[float, float]:
        """How far its measured turns lay apart: factors on its seconds around 1; (1, 1) for an unknown one."""
        cost = self._cost_of(compressor)
        return (1.0, 1.0) if cost is None else cost.spread

    def on(self, compressor: str, bytes_per_second: float, gathered: float = 1.0, merged: float = 1.0) -> Compressing:
        """Seconds of a bucket by its elements, on memory that moves `bytes_per_second`; 0 for an unknown method.

        gathered  factor on decoding: how many times as much is gathered as among the measured workers
        merged    factor on merging: how many times as many messages are combined in turn as among them

        Costs in copies lie on straight lines over the logarithm of the size. What an exchange of few elements takes
        beyond them is the calls' own cost, which the host pays on any hardware. A GPU's seconds lie on straight lines
        over the size; below the smallest one they stay, since what is left is the starting of kernels.
        """
        cost = self._cost_of(compressor)
        if cost is not None and cost.memory is not None:
            scale = cost.memory / bytes_per_second
            return _on_gpu((cost.copies, 1.0), (cost.decode, gathered), (cost.merge, merged), scale=scale)

        def seconds(numel: int) -> float:
            if cost is None or not numel:
                return 0.0
            copies = _between(cost.copies, numel) + gathered * _between(cost.decode, numel)
            copies += merged * _between(cost.merge, numel)
            return cost.fixed + copies * 2 * FLOAT_BYTES * numel / bytes_per_second

        return seconds

    def decoding(self, compressor: str, bytes_per_second: float, gathered: float = 1.0) -> Compressing:
        """The part of the seconds of `on` that reads answers and writes the average; it counts as the last part."""
        cost = self._cost_of(compressor)
        if cost is not None and cost.memory is not None:
            return _on_gpu((cost.decode, gathered), scale=cost.memory / bytes_per_second)

        def seconds(numel: int) -> float:
            if cost is None or not numel:
                return 0.0
            return gathered * _between(cost.decode, numel) * 2 * FLOAT_BYTES * numel / bytes_per_second

        return seconds


class FormatCoding:
    """Seconds of a rank's coding by format and elements (costmodel/coding.py), as `Rates` have them.

    A measured exchange of n elements codes n of them and a share of the sum, in two calls, and decodes n twice: the
    others' gradients, and the sum. Here are the mean calls.
    """

    def __init__(self, rates: Rates, bytes_per_second: float) -> None:
        self._rates, self._bytes_per_second = rates, bytes_per_second
        self._known: dict[str, Compressing] = {}

    def encode(self, form: str, numel: float) -> float:
        """Seconds to code a message of `numel` elements; UserError for a format that was not measured."""
        coded = (1 + 1 / self._rates.workers_of(_coding(form, "encode"))) / 2
        return self._seconds(form, "encode", numel / coded)

    def decode(self, form: str, numel: float) -> float:
        """Seconds to decode it; UserError for a format that was not measured."""
        return self._seconds(form, "decode", numel)

    def _seconds(self, form: str, part: Part, numel: float) -> float:
        name = _coding(form, part)
        if name not in self._known:
            if not self._rates.knows(name):
                raise UserError(UNKNOWN_FORM.format(form))
            self._known[name] = self._rates.on(name, self._bytes_per_second)
        return self._known[name](round(numel)) / 2


def _coding(form: str, part: Part) -> str:
    """The name of the cost of a format's coding; no compressor's."""
    return f"{part} {form}"


def _one_hop(form: str) -> str:
    """ONE_HOP as cells have it."""
    return ONE_HOP.format(form).replace(":", " ")


def _by_form(cells: Mapping[str, Sequence[CompressorResult]]) -> dict[str, list[CompressorResult]]:
    """The results of ONE_HOP by format, by rising size."""
    before, after = _one_hop("{}").split("{}")
    return {
        label.removeprefix(before).removesuffix(after): sorted(results, key=lambda cell: cell.items)
        for label, results in cells.items()
        if label.startswith(before) and label.endswith(after) and label.count(" ") == before.count(" ") + 1
    }


def _alone(cell: CompressorResult, part: Part) -> CompressorResult:
    """The result as if the method did this part alone."""
    none = (0.0,) * cell.turns
    return replace(cell, seconds={each: cell.seconds[each] if each == part else none for each in PARTS})


def _in_seconds(cells: Sequence[CompressorResult]) -> _Cost:
    """A method's cost by its cells measured on a GPU."""
    own = _cost(cells)
    parts = [(cell.items, {part: copies * cell.copy for part, copies in cell.copies.items()}) for cell in cells]
    decode, merge = (tuple((items, seconds[part]) for items, seconds in parts) for part in GROWING)
    rest = tuple((items, sum(seconds.values()) - sum(seconds[part] for part in GROWING)) for items, seconds in parts)
    return _Cost(0.0, rest, decode, merge, own.spread)


def _on_gpu(*parts: tuple[tuple[tuple[int, float], ...], float], scale: float) -> Compressing:
    """Seconds of these parts, each times its factor. scale: the measured memory's rate over the other GPU's.

    The least that a part took at any size is the starting of its kernels, by the host; the rest is memory's.
    """

    def seconds(points: tuple[tuple[int, float], ...], numel: int) -> float:
        starting = min(least for _, least in points)
        return starting + scale * (_along(points, numel) - starting)

    return lambda numel: sum(factor * seconds(points, numel) for points, factor in parts) if numel else 0.0


def _along(points: Sequence[tuple[int, float]], numel: int) -> float:
    """Seconds between measured sizes, in proportion beyond the largest."""
    for (low, seconds), (high, more) in pairwise(points):
        if numel <= high:
            return seconds + (more - seconds) * max(numel - low, 0) / (high - low)
    return points[-1][1] * max(numel / points[-1][0], 1.0)


def _cost(cells: Sequence[CompressorResult]) -> _Cost:
    # Read each cell's copies once, because reading them sorts the cell's turns.
    seen = [(cell, copies, sum(copies.values())) for cell, copies in ((cell, cell.copies) for cell in cells)]
    fixed = max(0.0, seen[0][2] - seen[1][2]) * cells[0].copy if len(seen) > 1 else 0.0
    known = seen[1:] or seen
    decode, merge = (tuple((cell.items, copies[part]) for cell, copies, _ in known) for part in GROWING)
    rest = tuple((cell.items, total - sum(copies[part] for part in GROWING)) for cell, copies, total in known)
    spreads = [(*cell.spread, total) for cell, _, total in known if total]
    low = min((quick / total for quick, _, total in spreads), default=1.0)
    high = max((slow / total for _, slow, total in spreads), default=1.0)
    return _Cost(fixed, rest, decode, merge, (min(low, 1.0), max(high, 1.0)))


def _words(label: str) -> str:
    """A label with options as NAME:key=value, the keys in order."""
    name, *options = label.split(" ")
    return ":".join([name, *sorted(options)])


def name_of(method: str) -> str:
    """A method's name, of a label that also has options."""
    return method.partition(":")[0].partition(" ")[0]


def _between(points: Sequence[tuple[int, float]], numel: int) -> float:
    if numel <= points[0][0]:
        return points[0][1]
    for (low, copies), (high, more) in pairwise(points):
        if numel <= high:
            return copies + (more - copies) * math.log(numel / low) / math.log(high / low)
    return points[-1][1]
