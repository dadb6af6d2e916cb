"""Runs on emulated clusters, simulated from outside: nothing that was timed in them is used but data and update.

The trace, the links' rate and how many copies a compressor takes are known. Two numbers are the machine's, which plays
all hosts on its cores: what every round costs for each rank that is woken in it, and what every request costs. They are
fitted to every second run, so that the others show how far they carry.
"""

import functools
import json
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

import compressors
import schedulers
from suite.studies.notes import NotedRun
from wirebench import collectives
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.request_sizes import Sizes
from wirebench.simulation import trace
from wirebench.simulation.compress_rates import Rates
from wirebench.simulation.simulator import Simulator, free
from wirebench.topology import presets
from wirebench.topology.presets import Network
from wirebench.topology.rates import parse_rate
from wirebench.topology.tree import Topology

START = (1e-4, 1e-3)
"""Seconds from which both numbers are looked for."""


class Machine(NamedTuple):
    """Seconds that a round costs for every rank that receives in it, and that every request costs."""

    round_seconds: float
    call_seconds: float


class Resimulated:
    """A run that can be simulated, with what does not depend on the machine worked out once."""

    def __init__(self, run: NotedRun, rates: Rates) -> None:
        config = run.record["config"]
        network, dilation = Network(0.0, _bytes_per_second(run.note["link"]), ""), config["network"]["dilation"] or 1.0
        self.topology = presets.cluster(network, run.record["world_size"])
        self.model = trace.load(trace.find(config["model"]["trace"])).faster(1 / dilation)
        self.other = sum(run.record["phases"][name] for name in ("data", "update"))
        self.measured: float = run.record["step_seconds"]["median"]
        name, options = _plugin(config["scheduler"], "profile")
        self.scheduler = schedulers.build(name, **options)
        name, options = _plugin(config["compressor"], "dense_below", "warmup")
        below = config["compressor"]["dense_below"]
        self.sizes = _sizes(name, json.dumps(options), self.topology.size, below)
        self.compressing = free if name == "none" else rates.on(name, rates.bytes_per_second)
        self.collective, collective_options = _plugin(config["collective"])
        self._plans = collectives.build(self.collective, **collective_options)

    def seconds(self, machine: Machine) -> float:
        """Of a step."""
        topology = Topology(self.topology.root, round_seconds=machine.round_seconds)
        pricer = Pricer(self._plans, self.collective, topology, machine.call_seconds)
        step = Simulator(self.model, self.sizes, self.compressing, pricer).step(self.scheduler).step
        return step.seconds + self.other

    def error(self, machine: Machine) -> float:
        """The simulated step over the measured one, less 1."""
        return self.seconds(machine) / self.measured - 1


def fit(runs: Sequence[Resimulated]) -> Machine:
    """The numbers with the least mean error; the same for the same runs."""

    def machine(logarithms: NDArray[np.float64]) -> Machine:
        return Machine(*np.exp(logarithms).tolist())

    def mean_error(logarithms: NDArray[np.float64]) -> float:
        return statistics.fmean(abs(math.log1p(run.error(machine(logarithms)))) for run in runs)

    minimum = minimize(mean_error, np.log(START), method="Nelder-Mead", options={"xatol": 0.01, "fatol": 1e-4})
    return machine(minimum.x)


@functools.cache
def _sizes(name: str, options: str, size: int, dense_below: int) -> Sizes:
    """Of a compressor with these options, as JSON: one for all its runs, for it remembers the sizes of every bucket."""
    make = functools.partial(compressors.build, name, dense_below=0, warmup=(), **json.loads(options))
    return Sizes(make, size, dense_below)


def _plugin(section: dict[str, Any], *others: str) -> tuple[str, dict[str, Any]]:
    """Its name and its own options, without the keys that any plugin of the kind has."""
    return section["name"], {key: value for key, value in section.items() if key not in ("name", *others)}


def _bytes_per_second(link: str) -> float:
    return parse_rate(link) / 8
