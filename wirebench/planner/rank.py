"""Every composition on a network, ranked, and the rate between machines at which compression stops paying."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from wirebench import collectives, compressors, schedulers
from wirebench.collectives.wire import Formatted
from wirebench.costmodel.request_cost import Pricer
from wirebench.errors import UserError
from wirebench.exchange.driver import Parts
from wirebench.planner.candidate import EXPECTED, POSSIBLY, SURELY, Candidate, Margin, place
from wirebench.planner.compositions import (
    DENSE,
    clash,
    class_of,
    compressing,
    is_own,
    lacks_shapes,
    needs_whole,
    sends_no_noise,
    sizes_of,
    used_density,
)
from wirebench.planner.pods import Pods, misfit
from wirebench.planner.ranges import Errors
from wirebench.planner.schedules import built
from wirebench.simulation.compress_rates import FormatCoding, Rates
from wirebench.simulation.simulator import Compressing, Factors, Simulator, free
from wirebench.simulation.trace import Trace
from wirebench.topology.tree import Topology

WHOLE = "single"
"""The scheduler that makes one message of the model."""
SCHEDULERS = ("wfbp", "fused", "single", "mg_wfbp", "optimal", "dear")
QUICK = ("optimal", "dear")
"""The best of all but for two hundredths, where many rates are tried."""
PLAIN = (DENSE, "fused", "ring")
"""Compressor, schedule and collective of DistributedDataParallel, as nearly as can be."""
COLLECTIVES = ("ring", "halving_doubling", "hierarchical", "blueconnect", "flexreduce")
LOWEST_GBIT, HIGHEST_GBIT, STEPS, HALVINGS, HALVINGS_OF_ENDS = 0.01, 1000.0, 12, 5, 2
"""Rates between which break-evens are looked for, in how many steps, and how often one of these is halved: also for the
ends of a break-even's range."""


EMPTY: Mapping[str, Any] = {}
Composed = tuple[str, str]
"""A schedule and a collective."""


class Adviser:
    """Compositions of one model.

    topology(gbit)    the cluster with this rate between machines; None: its own. The attribute has of pods what a
                      shard's replicas have of it
    bytes_per_second  of the memory that compresses
    errors            how far off predicted exchanges may be
    density           of compressors that have one; None: each one's own
    tried             schedulers, name:key=value; none: SCHEDULERS, and `local`. What needs the whole model goes with
                      `single` anyway, and methods that return updates are tried with it, too
    densities         by compressor, in place of its own where `density` is None
    local             by compressor, schedules with local steps
    tell              called with the number of finished compressors and of all
    pods              over whose workers FSDP shards the model; None: each worker has the whole model
    """

    def __init__(
        self,
        trace: Trace,
        topology: Callable[[float | None], Topology],
        rates: Rates,
        bytes_per_second: float,
        errors: Errors,
        density: float | None = None,
        tried: Sequence[str] = (),
        densities: Mapping[str, float] = EMPTY,
        local: Mapping[str, Sequence[str]] = EMPTY,
        tell: Callable[[int, int], None] = lambda done, every: None,
        pods: Pods | None = None,
    ) -> None:
        whole = functools.cache(topology)
        self.topology = functools.cache(lambda gbit: whole(gbit) if pods is None else pods.replicas(whole(gbit)))
        self._trace_at = functools.cache(lambda gbit: trace if pods is None else pods.trace(trace, whole(gbit)))
        self.trace, self.rates, self._pods = self._trace_at(None), rates, pods
        self.bytes_per_second, self.errors, self.density = bytes_per_second, errors, density
        self.workers, self._samples = self.topology(None).size, whole(None).size * trace.batch_size
        self.tried = tuple(dict.fromkeys(tried))
        self._densities, self._local, self._tell = densities, {} if tried else local, tell
        plain = (pods.plain,) if pods else ()
        self._schedulers = built(
            (*SCHEDULERS, *plain, *tried, *(each for those in self._local.values() for each in those))
        )
        self._collective = functools.cache(collectives.build)
        self._sizes_of = functools.cache(lambda name: sizes_of(name, self._given(name), self.trace, self.workers))
        # One for all compressors: many of their requests are of one size.
        self._pricer = functools.cache(lambda name, gbit: Pricer(self._collective(name), self.topology(gbit)))
        self._compressing = functools.cache(self._worked)
        self._fastest: dict[tuple[str, float, Composed | None], Candidate] = {}

    def all(self, names: Sequence[str], named: bool) -> tuple[list[Candidate], dict[str, str]]:
        """Every composition of these compressors, in the order of `place`; and those left out, with the reason.

        named  the user named them: include compressors for which noise shows little
        Raises UserError where no schedule goes with dense gradients: nothing could be compared.
        """
        advices: list[Candidate] = []
        left_out: dict[str, str] = {}
        for done, name in enumerate(names):
            self._tell(done, len(names))
            try:
                reason = self.unknown(name, named)
                advices += [] if reason else self._of(name, None)
            except UserError as error:
                # The keys are a config's, which this command has none of.
                reason = str(error).removeprefix("scheduler.name: ").removeprefix("compressor.name: ")
                reason = reason.removeprefix("compressor.")
            except Exception as error:
                # A user's own plugin may fail in any way; ours may not.
                tried = [each.partition(":")[0] for each in self.tried]
                if is_own(name) and all(map(schedulers.PLUGINS.is_own, tried)):
                    raise
                reason = f"it fails: {type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            if reason and name == DENSE:
                raise UserError(f"--schedulers: dense gradients, with which all are compared, are left out: {reason}")
            if reason:
                left_out[name] = reason
        return sorted(advices, key=place), left_out

    def plain(self) -> Candidate:
        """Dense training with DistributedDataParallel's schedule, or with FSDP's."""
        name, scheduler, collective = PLAIN
        scheduler = self._pods.plain if self._pods else scheduler
        return self._advices(name, [scheduler], collective, None)[0]

    def on_noise(self, name: str) -> bool:
        """Whether what it sends depends on the gradients, so that the simulation says something of noise alone."""
        return name != DENSE and self._sizes_of(name).by_value

    def unknown(self, name: str, named: bool) -> str:
        """Why nothing can be said of a compressor; "" where something can."""
        if name == DENSE:
            return ""
        if not self.rates.times(name):
            return "how long it compresses was not measured (wirebench bench compressors)"
        sizes = self._sizes_of(name)
        if reason := lacks_shapes(sizes, self.trace):
            return reason
        if reason := sends_no_noise(sizes, self.trace):
            return reason
        if sizes.by_value and not named:
            return "what it sends depends on how large gradients are; by name, it is shown on noise"
        return ""

    def density_of(self, name: str) -> float | None:
        """What the compressor works with; None for one that has no density."""
        return used_density(name, self._given(name))

    def _given(self, name: str) -> float | None:
        return self._densities.get(name) if self.density is None else self.density

    def break_even(self, name: str, composed: Composed | None = None) -> float | None:
        """Gbit/s below which the compressor needs less than WORTHWHILE of the best dense step, each at its best.

        composed: the schedule and the collective that count; None: at each rate the best of QUICK without local steps.
        The highest such rate between LOWEST_GBIT and HIGHEST_GBIT; None: at no rate, inf: at the highest already. It is
        looked for in STEPS, then by halves: at the same rates for all compressors, so that the dense step is known.
        """
        return self._limit(name, composed, EXPECTED, HALVINGS)

    def break_even_between(self, name: str, composed: Composed | None = None) -> tuple[float | None, float | None]:
        """Gbit/s below which the compressor surely pays, and from which on it surely does not, as in break_even().

        Surely: also with the longest of its exchanges beside the shortest of the dense ones, or the other way round.
        """
        low, high = (self._limit(name, composed, margin, HALVINGS_OF_ENDS) for margin in (SURELY, POSSIBLY))
        # The ends are looked for less finely than the break-even, which lies between them.
        at = self.break_even(name, composed)
        return min(low, at, key=_height), max(high, at, key=_height)

    def _limit(self, name: str, composed: Composed | None, margin: Margin, halvings: int) -> float | None:
        """Gbit/s of the highest step at which the margin is above 0, as break_even() has it."""

        def gained(step: float) -> float:
            return margin.of(self.best(DENSE, _gbit_of(step)), self.best(name, _gbit_of(step), composed))

        def pays(step: float) -> bool:
            # Where computing hides dense messages, compressors need not be simulated to know that they do not pay.
            return margin.most(self.best(DENSE, _gbit_of(step))) > 0 and gained(step) > 0

        highest = next((step for step in range(STEPS, -1, -1) if pays(step)), None)
        if highest is None or highest == STEPS:
            return None if highest is None else math.inf
        low, high = float(highest), highest + 1.0
        for _ in range(halvings):
            middle = (low + high) / 2
            low, high = (middle, high) if pays(middle) else (low, middle)
        gains = gained(low), gained(high)
        return _gbit_of(low + (high - low) * gains[0] / (gains[0] - gains[1]))

    def best(self, name: str, gbit: float, composed: Composed | None = None) -> Candidate:
        """A compressor's composition with the shortest expected step at this rate between machines.

        composed  the only one that counts; None: the compositions of QUICK, preferably without local steps
        """
        key = name, gbit, composed
        if key not in self._fastest:
            if composed is not None:
                self._fastest[key] = self._advices(name, [composed[0]], composed[1], gbit)[0]
                return self._fastest[key]
            those = self._of(name, gbit, self._quick(name))
            whole = [each for each in those if not each.local] or those
            self._fastest[key] = min(whole, key=lambda each: each.expected_seconds)
        return self._fastest[key]

    def _quick(self, name: str) -> Sequence[str]:
        """Schedules that are tried at many rates. Dense training with local steps is no baseline."""
        whole = [each for each in self.tried if not self._schedulers[each].driver.own_weights]
        return whole or (QUICK if name == DENSE or not self.tried else self.tried)

    def _of(self, name: str, gbit: float | None, tried: Sequence[str] = ()) -> list[Candidate]:
        """All compositions with these schedules; none: with those that go into the ranking."""
        usual = tried or self.tried or (*SCHEDULERS, *self._local.get(name, ()))
        chosen = (WHOLE,) if needs_whole(name, self._given(name)) else usual
        if class_of(name).makes_update:
            chosen = tuple(dict.fromkeys((*chosen, WHOLE)))
        advices = []
        for collective in _collectives(name, self.topology(gbit)):
            fitting = [each for each in chosen if not self._clash(each, name, collective)]
            advices += self._advices(name, fitting, collective, gbit)
        if not advices:
            raise UserError(f"no scheduler of {', '.join(chosen)} goes with it")
        return advices

    def _clash(self, scheduler: str, name: str, collective: str) -> str:
        built = self._schedulers[scheduler]
        return clash(built, name, collective, self._given(name)) or (misfit(built, name) if self._pods else "")

    def summed(self, collective: Formatted, name: str) -> Candidate | None:
        """Dense gradients' best composition of QUICK on a collective with wire formats, which is called `name`.

        None where none of these schedules goes with it. UserError for a format whose coding was not measured.
        """
        parts = Parts(compressors.build(DENSE), collective)
        chosen = [
            each
            for each in self._quick(DENSE)
            if not self._schedulers[each].driver.accepts(parts)
            and not (self._pods and misfit(self._schedulers[each], DENSE))
        ]
        pricer = Pricer(collective, self.topology(None), coding=self.coding)
        simulator = Simulator(self._trace_at(None), self._sizes_of(DENSE), free, pricer)
        found = self._stepped(simulator, DENSE, chosen, name, self.errors.factors((1.0, 1.0)))
        return min(found, key=lambda each: each.expected_seconds, default=None)

    @functools.cached_property
    def coding(self) -> FormatCoding:
        """Seconds of coding in wire formats."""
        return self.rates.coding(self.bytes_per_second)

    def _advices(self, name: str, chosen: Sequence[str], collective: str, gbit: float | None) -> list[Candidate]:
        """A compressor's compositions with these schedules and this collective."""
        (seconds, decoded), factors = self._compressing(name), self.errors.factors(self.rates.spread(name))
        simulator = Simulator(
            self._trace_at(gbit), self._sizes_of(name), seconds, self._pricer(collective, gbit), decoded
        )
        return self._stepped(simulator, name, chosen, collective, factors)

    def _stepped(
        self,
        simulator: Simulator,
        name: str,
        chosen: Sequence[str],
        collective: str,
        factors: tuple[Factors, Factors],
    ) -> list[Candidate]:
        """A composition for each of these schedules."""
        advices = []
        for text in chosen:
            scheduler = self._schedulers[text]
            step = simulator.step(scheduler)
            stretched = functools.partial(simulator.stretched, step, scheduler)
            unit, local = self.trace.unit, schedulers.PLUGINS.words_of(text) if scheduler.driver.own_weights else ""
            advices.append(Candidate(name, text, collective, step, self._samples, stretched, factors, unit, local))
        return advices

    def _worked(self, name: str) -> tuple[Compressing, Compressing]:
        """Seconds of its work, and how many of them come last."""
        method = self.rates, name, self._sizes_of(name), self.trace, self.bytes_per_second
        whole, last = compressing(*method, self.topology(None).processor)
        # Buckets are of few sizes, at every rate the same.
        return functools.cache(whole), functools.cache(last)


def _height(limit: float | None) -> float:
    return -1.0 if limit is None else limit


def _gbit_of(step: float) -> float:
    return LOWEST_GBIT * (HIGHEST_GBIT / LOWEST_GBIT) ** (step / STEPS)


def _collectives(name: str, topology: Topology) -> Sequence[str]:
    """The one that the compressor's paper names; of all others, dense ones too, those that may be the fastest."""
    if own := class_of(name).collective:
        return (own,)
    several = 1 < len(topology.machines) < topology.size
    ours = COLLECTIVES if several else COLLECTIVES[:2]
    return (*ours, "native") if topology.native else ours
