"""Steps on a cluster of three levels, under every schedule; run as a module, in a process whose cost is measured.

python -m tests.planner.large WORKERS MACHINES_OF_A_RACK COMPRESSOR ...
"""

import json
import sys
from pathlib import Path

from wirebench import collectives, schedulers
from wirebench.costmodel.request_cost import Pricer
from wirebench.planner.compositions import DENSE, clash, collective_of, needs_whole, sizes_of
from wirebench.planner.rank import COLLECTIVES
from wirebench.simulation import trace
from wirebench.simulation.simulator import Simulated, Simulator, free
from wirebench.topology import presets
from wirebench.topology.tree import Topology

MODEL = trace.load(trace.SHIPPED / "resnet50_gtx1080ti.json")
"""161 layers."""


def cluster(workers: int, machines: int) -> Topology:
    """Machines of eight workers, each with a link of its own, in racks of so many machines below a narrow spine."""
    racks = presets.Racks(machines, oversubscription=4.0)
    return presets.cluster(presets.find("100gbe"), workers, 8, racks, rails=True)


def collectives_of(name: str) -> tuple[str, ...]:
    """That of the compressor's paper, else a ring; of dense gradients all that the planner tries, and the engine's."""
    return (*COLLECTIVES, "native") if name == DENSE else (collective_of(name),)


def steps(name: str, collective: str, topology: Topology) -> dict[str, Simulated]:
    """A step under every schedule that goes with the compressor and the collective."""
    pricer = Pricer(collectives.build(collective), topology)
    simulator = Simulator(MODEL, sizes_of(name, None, MODEL, topology.size), free, pricer)
    made = {each: schedulers.build(each) for each in schedulers.available()}
    fitting = {"single"} if needs_whole(name) else set(made)
    return {
        each: simulator.step(built)
        for each, built in made.items()
        if each in fitting and not clash(built, name, collective)
    }


def main(workers: int, machines: int, names: list[str]) -> None:
    """Print the seconds of every step, by compressor, collective and schedule; in a second line the peak of memory.

    The kernel tells it in kilobytes of what runs now; to whoever waits for the process also of what it was forked from.
    """
    topology = cluster(workers, machines)
    found = {
        name: {
            collective: {schedule: each.step.seconds for schedule, each in steps(name, collective, topology).items()}
            for collective in collectives_of(name)
        }
        for name in names
    }
    print(json.dumps(found))
    print(Path("/proc/self/status").read_text(encoding="utf-8").partition("VmHWM:")[2].split()[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
