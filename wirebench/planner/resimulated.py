"""Runs on emulated clusters, simulated from outside: nothing that was timed in them is used but data and update.

The trace, the links' rate and how many copies a compressor takes are known, and how many cores play all hosts. What a
request, a message, its bytes and a merge cost these cores (wirebench/topology/processor.py) is the machine's: it is
fitted to every second run, so that the others show how far it carries.
"""

import functools
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, least_squares

from wirebench import collectives, schedulers
from wirebench.cluster.network import head_start_seconds
from wirebench.collectives.plan import Collective, Plan
from wirebench.compressors.bits.coded import code_of
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.request_sizes import Sizes
from wirebench.errors import UserError
from wirebench.planner.compositions import compressing, sizes_with
from wirebench.record import recorded
from wirebench.record.notes import NotedRun
from wirebench.simulation import trace
from wirebench.simulation.compress_rates import UNKNOWN_FORM, Rates
from wirebench.simulation.simulator import Factors, Simulator
from wirebench.topology import presets
from wirebench.topology.presets import Network
from wirebench.topology.processor import IDLE, Processor
from wirebench.topology.rates import parse_rate
from wirebench.topology.tree import Topology

FITTED = {
    "call_seconds": (3e-4, 1e-5, 1e-2),
    "message_seconds": (2e-4, 1e-6, 1e-2),
    "seconds_per_byte": (1e-9, 1e-11, 1e-7),
    "engine_share": (0.5, 0.02, 2.0),
    "engine_round_seconds": (5e-4, 1e-5, 1e-2),
    "compress_factor": (1.5, 0.5, 20.0),
}
"""The constants that are fitted: where the search begins, and between which values."""
RATES = "rates.jsonl"
"""Beside the runs: how long compressors work on their machine, by `wirebench bench compressors`."""
STEPS = (0.2, 0.03)
"""Step sizes of the search, in logarithms, used in this order. Schedulers that use profiles choose other buckets when a
cost changes, so a smaller step would measure noise."""
LEAST = 4
LEAST_FACTOR, MOST_FACTOR = 0.05, 20.0
PULL = 0.1
"""Towards where the search begins: a constant that is e times as large counts like a run that is off by so much. Runs
may not tell what a message costs from what passes between two: this keeps either from taking all."""
ROBUST_SCALE = 0.05
"""Errors beyond this share of a step's time count less and less, so that a few disturbed runs bend nothing."""


class _KeptPlans:
    """A collective whose plans on one tree are made once: a fit prices them on it with many processors."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._known: dict[int, Plan | None] = {}

    def plan(self, topology: Topology, items: int) -> Plan | None:
        """The collective's plan for this number of items; made once for each number."""
        if items not in self._known:
            self._known[items] = self._collective.plan(topology, items)
        return self._known[items]


def emulated(link: str, ranks: int, processor: Processor = IDLE, payload: float = 1.0) -> Topology:
    """Hosts of one rank each, as `wirebench cluster run` emulates them with links of this rate.

    payload: the share of the links' bytes that messages have; 1: what headers take is in the costs of a message.
    """
    rate = payload * parse_rate(link) / 8
    network = Network(0.0, rate, "", head_start_seconds=head_start_seconds(rate))
    return replace(presets.cluster(network, ranks), processor=processor)


class FromOutside:
    """A composition on an emulated cluster, with what does not depend on the machine worked out once.

    config  of the run, resolved, as nested tables; ranks: one a host; link: the links' rate, in words
    other   seconds of a step's loading and update
    """

    def __init__(self, config: dict[str, Any], ranks: int, link: str, other: float, rates: Rates) -> None:
        if (slow := config["network"].get("straggler", 1.0)) != 1:
            raise UserError(f"network.straggler: {slow:g} in the run; a simulated cluster's ranks are alike")
        dilation = config["network"]["dilation"] or 1.0
        self.topology = emulated(link, ranks)
        replayed = trace.load(trace.find(config["model"]["trace"]))
        self.model = replayed.batched(config["data"]["batch_size"]).faster(1 / dilation)
        self.other, self.gradient_seconds_per_byte = other, rates.gradient_seconds_per_byte
        name, options = plugin_of(config["scheduler"], "profile")
        self.scheduler = schedulers.build(name, **options)
        name, options = plugin_of(config["compressor"], "dense_below", "warmup")
        below = config["compressor"]["dense_below"]
        self.sizes = _sizes(name, json.dumps(options), self.topology.size, below)
        if name != "none" and not rates.knows(name):
            raise UserError(f"how long {name!r} compresses was not measured (wirebench bench compressors)")
        self._method = rates, name, self.sizes, self.model, rates.bytes_per_second
        self.collective, collective_options = plugin_of(config["collective"], "wire", "wire_within")
        forms = [config["collective"].get(key) or "" for key in ("wire", "wire_within")]
        for form in filter(None, forms):
            if not rates.codes(form):
                raise UserError(UNKNOWN_FORM.format(form))
        kept = _KeptPlans(collectives.build(self.collective, **collective_options))
        self._plans = collectives.formatted(kept, *(code_of(form, "collective.wire") for form in forms))
        self._coding = rates.coding(rates.bytes_per_second)

    def seconds(self, machine: Processor) -> float:
        """Predicted seconds of a step."""
        return self._simulator(machine).step(self.scheduler).step.seconds + self.other

    def between(self, machine: Processor, factors: tuple[Factors, Factors]) -> tuple[float, float]:
        """Predicted seconds of a step, with the shortest and with the longest exchange."""
        simulator = self._simulator(machine)
        found = simulator.step(self.scheduler)
        low, high = (simulator.stretched(found, self.scheduler, each).seconds + self.other for each in factors)
        return low, high

    def _simulator(self, machine: Processor) -> Simulator:
        pricer = Pricer(self._plans, replace(self.topology, processor=machine), coding=self._coding)
        seconds, decoded = compressing(*self._method, machine)
        return Simulator(self.model, self.sizes, seconds, pricer, decoded)


class Resimulated(FromOutside):
    """A run that was made, beside what it measured."""

    def __init__(self, run: NotedRun, rates: Rates) -> None:
        other = sum(run.record["phases"][name] for name in ("data", "update"))
        super().__init__(run.record["config"], run.record["world_size"], run.note["link"], other, rates)
        self.cores, self.machine = int(run.record["environment"]["cpu"]["cores"]), run.machine
        self.measured: float = run.record["step_seconds"]["median"]

    def error(self, machine: Processor) -> float:
        """The simulated step over the measured one, less 1."""
        return self.seconds(machine) / self.measured - 1

    def exchange(self, machine: Processor) -> "Exchange":
        """What the simulated step has of its exchange, and how far off that is."""
        simulator = self._simulator(machine)
        found = simulator.step(self.scheduler)

        def missing(logarithm: float) -> float:
            factors = Factors(math.exp(logarithm), math.exp(logarithm))
            return simulator.stretched(found, self.scheduler, factors).seconds + self.other - self.measured

        exposed, low, high = found.step.exposed, math.log(LEAST_FACTOR), math.log(MOST_FACTOR)
        if missing(low) >= 0 or missing(high) <= 0:
            return Exchange(exposed, None)
        return Exchange(exposed, math.exp(brentq(missing, low, high, xtol=1e-4)))


class Exchange(NamedTuple):
    """A simulated exchange beside the measured step.

    exposed_seconds  that it adds to the simulated step
    factor           times as long as simulated the exchange took, to make the step as long as it was measured; None
                     where no factor from LEAST_FACTOR to MOST_FACTOR does
    """

    exposed_seconds: float
    factor: float | None


def replayed(folder: Path, option: str, rates: Rates) -> dict[str, Resimulated]:
    """The replayed runs of emulated clusters in `folder`, by name; UserError, naming `option`, for fewer than LEAST."""
    noted = recorded.noted(folder, {"hosts": int, "link": str})
    runs = {
        each.folder.name: Resimulated(each, rates)
        for each in noted
        if each.record["config"]["model"]["name"] == "replay" and each.has("step_seconds", "median")
    }
    if len(runs) < LEAST:
        raise UserError(f"{option}: {folder}: needs {LEAST} replayed runs of emulated clusters, has {len(runs)}")
    return runs


def rates_of(folder: Path) -> Rates:
    """How long compressors work on the machine that made the runs of `folder`; ours where it was not measured there."""
    own = folder / RATES
    return Rates(own) if own.is_file() else Rates()


class Measured(Protocol):
    """A run that constants are fitted to: the machine's name and cores, and how far off these constants' step is."""

    @property
    def machine(self) -> str: ...
    @property
    def cores(self) -> int: ...
    @property
    def gradient_seconds_per_byte(self) -> float: ...
    def error(self, machine: Processor, /) -> float: ...


def check_machine(runs: Iterable[Measured]) -> None:
    """Raise UserError for runs of several kinds of machines, which have no constants in common."""
    machines = sorted({run.machine for run in runs})
    if len(machines) > 1:
        found = "; ".join(machines)
        raise UserError(f"constants describe one machine, and the runs are of {len(machines)}: {found}")


def fit(runs: Sequence[Measured]) -> Processor:
    """The constants that predict these runs best, all of them played by one machine; the same for the same runs.

    Raises UserError for runs of several kinds of machines.
    """
    check_machine(runs)
    known = {"cores": float(runs[0].cores), "gradient_seconds_per_byte": runs[0].gradient_seconds_per_byte}

    def machine(logarithms: NDArray[np.float64]) -> Processor:
        return Processor(**known, **dict(zip(FITTED, np.exp(logarithms).tolist(), strict=True)))

    begin, low, high = np.log(np.array(list(FITTED.values()))).T

    def errors(logarithms: NDArray[np.float64]) -> list[float]:
        pulls = PULL * (logarithms - begin)
        return [*(math.log1p(run.error(machine(logarithms))) for run in runs), *pulls.tolist()]

    found = begin
    for step in STEPS:
        found = least_squares(
            errors, found, bounds=(low, high), loss="soft_l1", f_scale=ROBUST_SCALE, diff_step=step, max_nfev=12
        ).x
    return machine(found)


@functools.cache
def _sizes(name: str, options: str, size: int, dense_below: int) -> Sizes:
    """Sizes of a compressor. options: as JSON. One object serves all its runs, since it caches the sizes of buckets."""
    return sizes_with(name, json.loads(options), size, dense_below)


def plugin_of(section: dict[str, Any], *others: str) -> tuple[str, dict[str, Any]]:
    """Its name and its own options, without the keys that any plugin of the kind has."""
    return section["name"], {key: value for key, value in section.items() if key not in ("name", *others)}
