"""The rates of `--rates` over the shipped ones, and times of compressors that both lack.

Timing works as `wirebench bench compressors` does. It measures one rank's own work on one thread of the CPU, in copies
of the vector. Requests are answered at once from the rank's own messages, as if all other workers had sent the same.
The number of workers is the one of the file's measurement. The seconds of one copy on another machine turn copies into
seconds there (wirebench/simulation/compress_rates.py).
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from wirebench.costmodel.played_exchange import one_thread
from wirebench.errors import UserError
from wirebench.planner.compositions import DENSE
from wirebench.simulation.compress_rates import Rates, name_of
from wirebench.telemetry.environment import hardware

SIZES = ("0.27m", "14.7m", "25.6m")
"""Sizes of the rates in results/, without the largest, whose copies equal the second largest's. The smallest size shows
the fixed cost of calls. The largest size here is left out for models that the second largest covers."""


@dataclass(frozen=True)
class TimedExchange:
    """What was timed here: its compressors, on which hardware, at which sizes; and why others could not be.

    but       a caveat on these times
    as_plain  others that count as long as with their own options, since the rates have only that
    """

    names: tuple[str, ...] = ()
    on: str = ""
    sizes: tuple[str, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    but: str = ""
    as_plain: tuple[str, ...] = ()

    def beside(self, names: Iterable[str], rates: Rates) -> "TimedExchange":
        """What was timed, and which of these compressors the rates have with their own options alone."""
        return replace(self, as_plain=tuple(each for each in names if ":" in each and not rates.knows(each)))

    def entry(self) -> dict[str, Any]:
        """Compressors, hardware and sizes as JSON values."""
        return {"compressors": self.names, "on": self.on, "sizes": self.sizes}

    @property
    def said(self) -> list[str]:
        """A line of text for what was timed, and one for each that counts as plain."""
        timed = (
            f"Rates of {', '.join(self.names)} were measured here just now, on {self.on}, with {', '.join(self.sizes)} "
            f"elements{self.but}."
        )
        plain = (f"{each} is taken to work as long as {name_of(each)}, which was measured." for each in self.as_plain)
        return [*[timed] * bool(self.names), *plain]


NOTHING = TimedExchange()


def check_device(given: Rates | None, *, on_gpu: bool) -> None:
    """Raise UserError for rates of a GPU where a CPU compresses."""
    if given is not None and given.device and not on_gpu:
        raise UserError(f"--rates: {given.path}: was measured on a GPU, {given.device}, and here a CPU compresses")


def rates_over(given: Rates | None, *, on_gpu: bool) -> Rates:
    """The shipped rates, and in their place what `--rates` has; a warning for a CPU's rates where a GPU compresses.

    UserError as of `check_device`.
    """
    check_device(given, on_gpu=on_gpu)
    rates = Rates.shipped(on_gpu=on_gpu)
    if given is not None:
        rates.take(given)
        if on_gpu and not given.device:
            print(f"warning: --rates: {given.path}: was measured on a CPU, and here a GPU compresses", file=sys.stderr)
    return rates


def time_unknown(names: Sequence[str], rates: Rates, density: float | None, numel: int) -> TimedExchange:
    """Time the compressors that the rates lack, and add them to the rates.

    A GPU's rates lack none that was measured there, if with other options: a CPU's times would be further off.

    density  of compressors that have one; None: each one's own
    numel    elements of the model for which the rates are needed
    """
    known = rates.times if rates.device else rates.knows
    unknown = [name for name in dict.fromkeys(names) if name != DENSE and not known(name)]
    if not unknown:
        return NOTHING
    print(f"timing {', '.join(unknown)} on this machine: up to half a minute each", file=sys.stderr)
    # Imported where they are needed: a benchmark brings rivals and figures along.
    from wirebench.bench.compressors import parse_compressor
    from wirebench.bench.inputs import parse_size
    from wirebench.bench.turns import timed_here

    sizes = [parse_size(text) for text in SIZES]
    enough = next((place for place, size in enumerate(sizes, 1) if place > 1 and size.numel >= numel), len(sizes))
    with one_thread():
        on = hardware(torch.device("cpu"))
    cells = timed_here(rates.workers, sizes[:enough], [parse_compressor(name, density) for name in unknown])
    of_label = {name.replace(":", " "): name for name in unknown}
    errors = {of_label[cell.method]: f"it could not be timed here: {cell.error}" for cell in cells if cell.error}
    rates.add([cell for cell in cells if of_label[cell.method] not in errors])
    but = "; a GPU also spends time on starting kernels, so they are too low beside its own" if rates.device else ""
    return TimedExchange(tuple(name for name in unknown if name not in errors), on, SIZES[:enough], errors, but)
