"""Where a simulated job runs: what `wirebench simulate` and `wirebench advise` ask for, and what they make of it."""

import argparse
import math
from pathlib import Path

from wirebench.errors import UserError
from wirebench.topology import presets, topology_file
from wirebench.topology.tree import Branch, Link, Topology
from wirebench.utils.cli import naming

DEFAULT = "10gbe"
MOST_WORKERS = 100_000
"""Every one of them is a branch of the topology."""
WIDTH = 120
"""Columns of what is printed where there is no terminal."""


def add_network(parser: argparse.ArgumentParser) -> None:
    """The options that name a network."""
    names = ", ".join(presets.NETWORKS)
    parser.add_argument("--network", metavar="NAME", help=f"{names} ({DEFAULT})")
    parser.add_argument("--topology", metavar="FILE", help="instead: a file with link speeds (wirebench fit)")
    parser.add_argument("--per-machine", type=int, metavar="N", help="workers of a machine (1)")
    parser.add_argument("--rails", action="store_true", help="each worker of a machine has a link of its own")
    parser.add_argument("--per-rack", type=int, metavar="N", help="machines of a rack, below a spine (one switch)")
    parser.add_argument("--oversubscription", type=float, metavar="X", help="of a rack's link to the spine (1)")


def topology_of(
    options: argparse.Namespace, workers: int, gbit: float | None = None, inside: Link = presets.LOCAL
) -> Topology:
    """The cluster of `workers` workers; `gbit` replaces the rate between machines, in Gbit/s.

    inside  the link between the workers of a machine, if no file describes it
    """
    each = 1 if options.per_machine is None else options.per_machine
    if not (1 <= workers <= MOST_WORKERS and 1 <= each <= MOST_WORKERS):
        raise UserError(f"--workers and --per-machine: need 1 to {MOST_WORKERS}")
    if not options.topology:
        if workers > each and workers % each:
            raise UserError(
                f"--workers: {workers} do not fill machines of {each} (--per-machine); a file of --topology describes "
                "machines that differ"
            )
        network = presets.find(options.network or DEFAULT)
        rate = network.bytes_per_second if gbit is None else gbit * 1e9 / 8
        between = network._replace(bytes_per_second=rate)
        return presets.cluster(between, workers, each, _racks(options), options.rails, inside)
    for name in ("network", "per_machine", "rails", "per_rack", "oversubscription"):
        if getattr(options, name) not in (None, False):
            raise UserError(f"--{name.replace('_', '-')}: goes without --topology, which says it already")
    with naming({"topology": "--topology"}):
        described = topology_file.resolve(options.topology)
    if not all(branch.links for branch in described.branches.values()):
        raise UserError(f"--topology: {options.topology} has no link speeds; wirebench fit measures them")
    if described.size != workers:
        raise UserError(f"--topology: {options.topology} has {described.size} ranks, not {workers}")
    return described if gbit is None else presets.rescaled(described, gbit / gbit_of(described))


def error_of(options: argparse.Namespace) -> float:
    """Relative error of the fit of the topology's speeds at its median cell; 0 for speeds that were not fitted."""
    return topology_file.describe(str(options.topology)).fit.get("median_error", 0.0) if options.topology else 0.0


def _racks(options: argparse.Namespace) -> presets.Racks | None:
    """What --per-rack and --oversubscription ask for; UserError for what cannot be."""
    if options.per_rack is None:
        if options.oversubscription is not None:
            raise UserError("--oversubscription: applies to racks; give --per-rack")
        return None
    factor = 1.0 if options.oversubscription is None else options.oversubscription
    if not (1 <= options.per_rack <= MOST_WORKERS and 1 <= factor <= MOST_WORKERS):
        raise UserError(f"--per-rack and --oversubscription: need 1 to {MOST_WORKERS}")
    return presets.Racks(options.per_rack, factor)


def gbit_of(topology: Topology) -> float:
    """Gbit/s of a machine's link to the others, for large messages; of one machine, inside it."""
    node = topology.root
    while isinstance(child := node.children[0], Branch) and isinstance(child.children[0], Branch):
        node = child
    return node.link(1e9).bytes_per_second * 8 / 1e9


def source_of(options: argparse.Namespace) -> str:
    """Where the network's numbers come from, in words."""
    if options.topology:
        note = topology_file.describe(str(Path(options.topology))).note
        return f"{options.topology}{': ' + note if note else ''}"
    name = options.network or DEFAULT
    racks = "" if options.per_rack is None else f"; racks of {options.per_rack} machines"
    over = "" if options.oversubscription is None else f", {options.oversubscription:g} to 1 on the spine"
    rails = "; a link for each worker of a machine" if options.rails else ""
    return f"{name}: {presets.find(name).source}{racks}{over}{rails}"


def rate(gbit: float) -> str:
    """A rate in words."""
    if math.isinf(gbit):
        return "at any rate"
    return f"{gbit:.3g} Gbit/s" if gbit >= 1 else f"{1e3 * gbit:.3g} Mbit/s"
