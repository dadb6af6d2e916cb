"""The plan of an emulated cluster: hosts with their ranks, switches, and the cables between them."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property

from wirebench.errors import UserError
from wirebench.topology.rates import LOWEST, parse_rate, show_rate
from wirebench.topology.tree import Branch, Topology

SWITCH_ADDRESS = "10.77.0.1"
PREFIX_BITS = 16
ROOT_SWITCH = "s0"
HOST_PREFIX = "h"
MAX_HOSTS = 250


@dataclass(frozen=True)
class Host:
    """A machine of the cluster: its name, IPv4 address and ranks, in rank order."""

    name: str
    address: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Cable:
    """A link from a host or a switch up to a switch; both directions carry `bits_per_second` at once."""

    child: str
    parent: str
    bits_per_second: float


@dataclass(frozen=True)
class ClusterPlan:
    """A cluster to be built.

    layout    ranks per machine, as Topology.parse reads it
    links     the rates as the user gave them, before dilation
    dilation  how many times slower than that the cables are
    """

    layout: str
    links: str
    dilation: float
    hosts: tuple[Host, ...]
    cables: tuple[Cable, ...]

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(len(host.ranks) for host in self.hosts)

    @property
    def switches(self) -> tuple[str, ...]:
        """Every switch, the root first."""
        return tuple(dict.fromkeys((ROOT_SWITCH, *(cable.parent for cable in self.cables))))

    @cached_property
    def host_of(self) -> dict[int, str]:
        """Name of each rank's host."""
        return {rank: host.name for host in self.hosts for rank in host.ranks}

    def cable_of(self, host: str) -> Cable:
        """The cable that leads up from this host."""
        return next(cable for cable in self.cables if cable.child == host)

    def dump(self) -> str:
        """The plan as JSON, which `load` reads."""
        return json.dumps(asdict(self))


def load(text: str) -> ClusterPlan:
    """The plan that `Plan.dump` wrote."""
    content = json.loads(text)
    hosts = tuple(Host(host["name"], host["address"], tuple(host["ranks"])) for host in content.pop("hosts"))
    cables = tuple(Cable(**cable) for cable in content.pop("cables"))
    return ClusterPlan(**content, hosts=hosts, cables=cables)


def make_plan(layout: str, links: str, dilation: float = 1.0) -> ClusterPlan:
    """Plan the cluster of a layout such as "2+3" or "(2+2)+(3+3)"; machines become hosts h0, h1, ... in order.

    links     rates: one for all cables, or one per host separated by commas, or one per level of switches separated by
              semicolons, the hosts' links first
    dilation  the cables get the rate divided by this
    Raises UserError where layout or links cannot be read, or do not fit each other.
    """
    if not 1 <= dilation < float("inf"):
        raise UserError(f"--dilation: must be at least 1, got {dilation:g}")
    topology = Topology.parse(layout)
    root = topology.root
    # A single machine gets a switch too, so that its ranks find an eth0 as everywhere.
    tree = Branch((root,)) if all(isinstance(child, int) for child in root.children) else root
    if len(topology.machines) > MAX_HOSTS:
        raise UserError(f"--layout: at most {MAX_HOSTS} hosts, got {len(topology.machines)}")
    hosts: list[Host] = []
    levels: list[tuple[str, str, int]] = []
    _lay(tree, ROOT_SWITCH, 0, hosts, levels)
    rates = _rates(links, [child for child, _, _ in levels if child.startswith(HOST_PREFIX)], levels)
    cables = tuple(Cable(child, parent, rates[child] / dilation) for child, parent, _ in levels)
    if min(cable.bits_per_second for cable in cables) < LOWEST:
        raise UserError(f"--dilation: {dilation:g} leaves a link with less than {show_rate(LOWEST)}")
    return ClusterPlan(topology.layout, links, dilation, tuple(hosts), cables)


def _lay(branch: Branch, switch: str, depth: int, hosts: list[Host], levels: list[tuple[str, str, int]]) -> None:
    """Append the hosts below `switch`, and (child, parent, depth of the parent) of every cable."""
    for child in branch.children:
        assert isinstance(child, Branch), "a parsed layout has ranks in machines only"
        ranks = tuple(rank for rank in child.children if isinstance(rank, int))
        if ranks:
            name = f"{HOST_PREFIX}{len(hosts)}"
            hosts.append(Host(name, f"10.77.1.{len(hosts) + 1}", ranks))
            levels.append((name, switch, depth))
        else:
            name = f"s{1 + sum(child.startswith('s') for child, _, _ in levels)}"
            levels.append((name, switch, depth))
            _lay(child, name, depth + 1, hosts, levels)


def _rates(links: str, hosts: list[str], levels: list[tuple[str, str, int]]) -> dict[str, float]:
    """Rate of the cable above each host and switch, in bits per second."""
    depth = 1 + max(level for _, _, level in levels)
    by_level = [parse_rate(part) for part in links.split(";")] if "," not in links else []
    if len(by_level) == 1:
        return {child: by_level[0] for child, _, _ in levels}
    if by_level:
        if len(by_level) != depth:
            raise UserError(f"--link: {len(by_level)} levels of rates, but the layout has {depth} of switches")
        return {child: by_level[depth - 1 - level] for child, _, level in levels}
    if depth > 1:
        raise UserError("--link: a layout with brackets takes one rate, or one per level separated by semicolons")
    by_host = [parse_rate(part) for part in links.split(",")]
    if len(by_host) != len(hosts):
        raise UserError(f"--link: {len(by_host)} rates for {len(hosts)} hosts; give one for all, or one per host")
    return dict(zip(hosts, by_host, strict=True))
