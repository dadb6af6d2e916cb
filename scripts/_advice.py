"""What advise.py works out: every composition on a network, ranked, and the rate at which compression stops paying."""

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import compressors
import schedulers
from wirebench import collectives
from wirebench.compress_rates import Rates
from wirebench.errors import UserError
from wirebench.pricing import Pricer
from wirebench.simulate import Simulated, Simulator
from wirebench.sizing import Sizes
from wirebench.topology import Topology
from wirebench.trace import Trace

DENSE = "none"
SCHEDULERS = ("wfbp", "fused", "sync_easgd", "mg_wfbp", "optimal", "dear")
DENSE_COLLECTIVES = ("ring", "halving_doubling", "hierarchical", "blueconnect", "flexreduce")
LOWEST_GBIT, HIGHEST_GBIT, STEPS, REFINED = 0.01, 1000.0, 12, 7
"""Rates between which break-evens are looked for, and how finely."""


@dataclass(frozen=True)
class Advice:
    """One composition.

    below  Gbit/s below which its compressor, with its best schedule, beats the best dense composition; None: at no
           rate, inf: at all that were tried. For dense compositions None
    """

    compressor: str
    scheduler: str
    collective: str
    found: Simulated
    images_per_second: float
    below: float | None = None

    @property
    def why(self) -> str:
        """Which phase decides."""
        found = self.found
        if found.step.exposed < 0.02 * found.alone:
            return "all but hidden behind the backward pass"
        if found.compress > found.communicate:
            return f"compression takes {1e3 * found.compress:.1f} ms, its messages {1e3 * found.communicate:.1f}"
        return f"messages take {1e3 * found.communicate:.1f} ms, {1e3 * found.step.exposed:.1f} of it exposed"


class Adviser:
    """Compositions of one model.

    topology(gbit)    the cluster; None: at its own rate
    bytes_per_second  of the memory that compresses
    """

    def __init__(
        self,
        trace: Trace,
        topology: Callable[[float | None], Topology],
        rates: Rates,
        bytes_per_second: float,
        density: float,
        formulas: bool = False,
    ) -> None:
        self.trace, self.topology, self.rates, self.formulas = trace, topology, rates, formulas
        self.bytes_per_second, self.density = bytes_per_second, density
        self.workers = topology(None).size
        self._sizes: dict[str, Sizes] = {}

    def all(self, names: Sequence[str], named: bool) -> tuple[list[Advice], dict[str, str]]:
        """Every composition of these compressors, the fastest first; and those left out, with the reason.

        named  the user asked for them: also those of which noise says little
        """
        found: list[Advice] = []
        left_out: dict[str, str] = {}
        for name in names:
            try:
                if not named and name != DENSE and self._sizes_of(name).by_value:
                    left_out[name] = "what it sends depends on how large gradients are; by name, it is shown on noise"
                    continue
                found += self._of(name, None)
            except (UserError, ValueError) as error:
                left_out[name] = str(error)
        return sorted(found, key=lambda each: each.found.step.seconds), left_out

    def break_even(self, name: str) -> float | None:
        """Gbit/s below which the compressor beats the best dense composition (see Advice.below)."""
        ratio = (HIGHEST_GBIT / LOWEST_GBIT) ** (1 / STEPS)
        rates = [LOWEST_GBIT * ratio**step for step in range(STEPS + 1)]
        pays = [self._gain(name, gbit) > 0 for gbit in rates]
        if not any(pays):
            return None
        last = max(step for step, does in enumerate(pays) if does)
        if last == STEPS:
            return math.inf
        low, high = rates[last], rates[last + 1]
        for _ in range(REFINED):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._gain(name, middle) > 0 else (low, middle)
        return math.sqrt(low * high)

    def _gain(self, name: str, gbit: float) -> float:
        """Seconds that the compressor saves at this rate, each with its best schedule; less than 1 % is nothing."""
        dense, ours = self._best(DENSE, gbit), self._best(name, gbit)
        return dense - ours if ours < 0.99 * dense else min(dense - ours, 0.0)

    @functools.lru_cache(maxsize=4096)  # noqa: B019  an adviser lives as long as the program
    def _best(self, name: str, gbit: float) -> float:
        return min(each.found.step.seconds for each in self._of(name, gbit, quick=True))

    def _of(self, name: str, gbit: float | None, quick: bool = False) -> list[Advice]:
        topology = self.topology(gbit)
        found = []
        whole = getattr(self._make(name)(), "whole_model", "")
        chosen = ("sync_easgd",) if whole else ("optimal", "dear") if quick else SCHEDULERS
        for collective in self._collectives(name, topology, quick):
            pricer = Pricer(collectives.build(collective), collective, topology, formulas=self.formulas)
            compressing = self.rates.on(name, self.bytes_per_second) if name != DENSE else _nothing
            simulator = Simulator(self.trace, self._sizes_of(name), compressing, pricer)
            for scheduler in chosen:
                step = simulator.step(schedulers.build(scheduler))
                images = self.workers * self.trace.batch_size / step.step.seconds
                found.append(Advice(name, scheduler, collective, step, images))
        return found

    def _collectives(self, name: str, topology: Topology, quick: bool) -> Sequence[str]:
        """The compressor's own; of the dense sum all that may be the fastest."""
        own = getattr(compressors.PLUGINS.load(name), "collective", "")
        if own or name != DENSE:
            return (own or "ring",)
        several = len(topology.machines) > 1 and len(topology.machines) < topology.size
        names = DENSE_COLLECTIVES if several else DENSE_COLLECTIVES[:2]
        return names

    def _make(self, name: str) -> Any:
        options = {"density": self.density} if "density" in compressors.PLUGINS.options(name) else {}
        return functools.partial(compressors.build, name, dense_below=0, warmup=(), **options)

    def _sizes_of(self, name: str) -> Sizes:
        if name not in self._sizes:
            self._sizes[name] = Sizes(self._make(name), self.workers)
        return self._sizes[name]


def _nothing(numel: int) -> float:
    return 0.0


def sentence(best: Sequence[Advice], breaks: dict[str, float | None]) -> str:
    """The plain answer. `best`: each compressor's best composition, the fastest first, dense among them."""
    dense = next(each for each in best if each.compressor == DENSE)
    first = best[0]
    gain = first.images_per_second / dense.images_per_second - 1
    plain = f"dense with {dense.scheduler} on {dense.collective}"
    if first.compressor == DENSE or gain < 0.01:
        paying = {name: below for name, below in breaks.items() if below}
        if not paying:
            return f"On this network nothing beats {plain}, and at no rate that was tried does any compressor."
        name, most = max(paying.items(), key=lambda item: item[1])
        return f"On this network nothing beats {plain}. The first to pay on slower links is {name}, below {rate(most)}."
    limit = breaks.get(first.compressor)
    until = "" if not limit else " It pays " + ("at any rate." if math.isinf(limit) else f"below {rate(limit)}.")
    return (
        f"{first.compressor} with {first.scheduler} on {first.collective} is {100 * gain:.0f} % faster than {plain} "
        f"({first.images_per_second:.0f} against {dense.images_per_second:.0f} images/s).{until} It is lossy: see what "
        "it does to the accuracy (results/convergence)."
    )


def rate(gbit: float) -> str:
    """A rate in words."""
    if math.isinf(gbit):
        return "at any rate"
    return f"{gbit:.3g} Gbit/s" if gbit >= 1 else f"{1e3 * gbit:.3g} Mbit/s"
