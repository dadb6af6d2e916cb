"""A cluster of pods, each of which shares one model: the ranks of a pod, and the replicas of a shard, as topologies.

Pod p has the ranks p * shards to p * shards + shards - 1. All shards' replicas exchange at the same time, and so do all
pods: each topology has what is left of a link, of shared cores, and of what all messages share.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from wirebench.errors import UserError
from wirebench.topology.tree import Branch, Link, Topology


def pod(topology: Topology, shards: int) -> Topology:
    """The ranks of the first pod; UserError where pods of this size do not fit the cluster."""
    pods = _pods(topology, shards)
    return _part(topology, {rank: rank for rank in range(shards)}, lambda below: 1, pods)


def replicas(topology: Topology, shards: int) -> Topology:
    """The ranks that have the first shard, one of each pod; UserError where pods of this size do not fit the cluster.

    A link that leads out of a pod carries the messages of all shards, so each has its part of the rate.
    """
    pods = _pods(topology, shards)
    return _part(topology, {p * shards: p for p in range(pods)}, lambda below: min(shards, below), shards)


def _pods(topology: Topology, shards: int) -> int:
    """How many pods there are."""
    if not 1 <= shards < topology.size or topology.size % shards:
        raise UserError(f"--shard: {topology.size} workers are not several pods of {shards}")
    for branch in topology.branches.values():
        crossed = {rank // shards for rank in branch.ranks}
        if len(crossed) > 1 and len(crossed) * shards != len(branch.ranks):
            raise UserError(
                f"--shard: pods of {shards} do not fit {topology.layout}: one has a part of a machine, or of a switch"
            )
    return topology.size // shards


def _part(topology: Topology, numbers: Mapping[int, int], flows: Callable[[int], int], alike: int) -> Topology:
    """The topology of some ranks, with new numbers.

    flows  messages that share a link at a time in place of each of theirs, by the ranks below it
    alike  groups of ranks that do the same at the same time
    """

    def kept(branch: Branch) -> Branch | None:
        children: list[Branch | int] = []
        most = 1
        for child in branch.children:
            if isinstance(child, int):
                children += [numbers[child]] if child in numbers else []
            elif (below := kept(child)) is not None:
                children.append(below)
                most = max(most, flows(len(child.ranks)))
        links = tuple(_shared(link, most) for link in branch.links)
        return Branch(tuple(children), links) if children else None

    root = kept(topology.root)
    assert root is not None, "a pod has ranks"
    processor = replace(topology.processor, cores=topology.processor.cores / alike)
    together = tuple(
        replace(each, latency_seconds=alike * each.latency_seconds, bytes_per_second=each.bytes_per_second / alike)
        for each in topology.shared
    )
    # The engine's own all-reduce was measured among all ranks.
    return replace(topology, root=root, shared=together, native=(), processor=processor)


def _shared(link: Link, flows: int) -> Link:
    """What a link has for one of several flows: a lane of it, or a part of one."""
    rate = link.bytes_per_second * min(1.0, link.lanes / flows)
    return replace(link, bytes_per_second=rate, lanes=max(1, link.lanes // flows))
