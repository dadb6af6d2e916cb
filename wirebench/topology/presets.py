"""Networks by name: what a message costs on them, and clusters of them.

A name here stands for a rate and a start-up time. The rate is the nominal one unless it was measured. Users should
measure their own network: wirebench bench collectives and wirebench fit make a topology file of it.
"""

import dataclasses
import functools
from typing import NamedTuple

from wirebench.config.plugins import suggest
from wirebench.errors import UserError
from wirebench.topology.tree import Branch, Link, Topology


class Network(NamedTuple):
    """A network between machines: start-up time of a message, bytes per second, seconds to add a received byte.

    source              where the numbers come from, in words
    head_start_seconds  of its links (tree.Link)
    """

    latency_seconds: float
    bytes_per_second: float
    source: str
    reduce_seconds_per_byte: float = 0.0
    head_start_seconds: float = 0.0


def _gbit(rate: float) -> float:
    return rate * 1e9 / 8


ETHERNET = "nominal rate; start-up 45.26 us as fitted to a K80 cluster's 10GbE (MG-WFBP, Fig. 5)"
NETWORKS = {
    "1gbe": Network(45.26e-6, _gbit(1), ETHERNET),
    "10gbe": Network(45.26e-6, _gbit(10), ETHERNET),
    "25gbe": Network(20e-6, _gbit(25), "nominal rate; start-up 20 us assumed"),
    "40gbe": Network(20e-6, _gbit(40), "nominal rate; start-up 20 us assumed"),
    "100gbe": Network(10e-6, _gbit(100), "nominal rate; start-up 10 us assumed"),
    "ib56": Network(7.0e-6, _gbit(45.8), "MG-WFBP's code, 56 Gbit/s InfiniBand, 8 nodes: a = 97.5 us, b = 0.306 ns/B"),
    "ib200": Network(3e-6, _gbit(200), "nominal rate; start-up 3 us assumed"),
    "mgwfbp": Network(
        45.25e-6, 1 / 0.993e-9, "the MG-WFBP authors' simulator: 10GbE, adding on the CPU at 2.5 ns/B", 2.5e-9
    ),
}
LOCAL = Link(5e-6, 12e9)
"""The link between the GPUs of a machine: PCIe 3 x16, nominal."""
NVLINK_LATENCY_SECONDS = 5e-6
"""Start-up time of a message inside a machine: assumed, as on PCIe."""
ALONE = Link(0.0, 1e15)
"""The link of a rank that is alone in its machine: never the limit."""


def find(name: str) -> Network:
    """The network of this name; UserError lists what there is."""
    if name not in NETWORKS:
        raise UserError(f"--network: no {name!r}; {suggest(name, list(NETWORKS))}; for any other rate add --gbit")
    return NETWORKS[name]


def nvlink(gbytes_per_second: float) -> Link:
    """The link of a GPU to the other GPUs of its machine, at the nominal rate of its NVLinks in one direction."""
    return Link(NVLINK_LATENCY_SECONDS, gbytes_per_second * 1e9)


class Racks(NamedTuple):
    """Racks of machines below a spine.

    machines          of a rack
    oversubscription  what a rack's machines can send together, over what its link to the spine carries
    """

    machines: int
    oversubscription: float = 1.0


def cluster(
    network: Network,
    workers: int,
    per_machine: int = 1,
    racks: Racks | None = None,
    rails: bool = False,
    inside: Link = LOCAL,
) -> Topology:
    """`workers` ranks on machines of `per_machine` (the last may have fewer), on one switch, or in racks on a spine.

    rails   every rank of a machine has a link of the network's rate to itself
    inside  between the ranks of a machine
    """
    assert workers >= 1 and per_machine >= 1, f"{workers} workers on machines of {per_machine}"
    machines = _machines(workers, per_machine, inside)
    lanes = per_machine if rails else 1
    link = Link(
        network.latency_seconds, network.bytes_per_second, lanes=lanes, head_start_seconds=network.head_start_seconds
    )
    root = Branch(machines, (link,)) if len(machines) > 1 else machines[0]
    if racks is not None and len(machines) > racks.machines:
        below = [machines[at : at + racks.machines] for at in range(0, len(machines), racks.machines)]
        together = link.lanes * racks.machines * network.bytes_per_second
        spine = Link(network.latency_seconds, together / racks.oversubscription)
        root = Branch(tuple(Branch(each, (link,)) for each in below), (spine,))
    return Topology(root, reduce_seconds_per_byte=network.reduce_seconds_per_byte)


@functools.lru_cache(maxsize=4)
def _machines(workers: int, per_machine: int, inside: Link) -> tuple[Branch, ...]:
    """Kept, since thousands of them are alike at every rate that is tried."""
    bounds = range(0, workers, per_machine)
    ranks = [tuple(range(b, min(b + per_machine, workers))) for b in bounds]
    return tuple(Branch(each, (inside if len(each) > 1 else ALONE,)) for each in ranks)


def rescaled(topology: Topology, factor: float) -> Topology:
    """A topology whose links between machines have `factor` times the rate; start-up times stay.

    The engine's own all-reduce, where it was measured, gets `factor` times the bandwidth as well. A topology of one
    machine is rescaled inside it.
    """

    def dressed(node: Branch) -> Branch:
        if all(isinstance(child, int) for child in node.children) and len(topology.machines) > 1:
            return node
        children = tuple(child if isinstance(child, int) else dressed(child) for child in node.children)
        links = tuple(dataclasses.replace(link, bytes_per_second=factor * link.bytes_per_second) for link in node.links)
        return Branch(children, links)

    native = tuple(
        dataclasses.replace(link, bytes_per_second=factor * link.bytes_per_second) for link in topology.native
    )
    return dataclasses.replace(topology, root=dressed(topology.root), native=native)
