"""The ways of messages through a topology: which links they cross, and where two ranks' ways to the root meet."""

from functools import lru_cache
from typing import Literal, NamedTuple

from wirebench.topology.tree import Branch, BranchPath, Topology

Direction = Literal["up", "down"]
"""Up: from a node to its parent; down: from the parent to the node."""

DirectedLink = tuple[int | BranchPath, Direction]
"""One direction of the link above a node, which is a rank or a branch's path."""


class LinkRoute(NamedTuple):
    """The way of a message: the branch at which its ranks meet, and the links that it crosses."""

    meeting: Branch
    links: tuple[DirectedLink, ...]


class RoutedNetwork:
    """The routes of a topology, each worked out once."""

    def __init__(self, topology: Topology) -> None:
        self._chains, self._branches = topology.chains, topology.branches
        self._routes: dict[tuple[int, int], LinkRoute] = {}

    def above(self, node: int | BranchPath) -> Branch:
        """The parent of a rank or of a branch: it knows the speed of the link between the two."""
        return self._branches[self._chains[node][-1] if isinstance(node, int) else node[:-1]]

    def route(self, src: int, dst: int) -> LinkRoute:
        """The way from rank `src` to rank `dst`."""
        if (src, dst) not in self._routes:
            self._routes[src, dst] = self._find(src, dst)
        return self._routes[src, dst]

    def _find(self, src: int, dst: int) -> LinkRoute:
        from_root, to = self._chains[src], self._chains[dst]
        shared = sum(a == b for a, b in zip(from_root, to, strict=False))
        upwards: list[DirectedLink] = [(src, "up"), *((path, "up") for path in reversed(from_root[shared:]))]
        downwards: list[DirectedLink] = [*((path, "down") for path in to[shared:]), (dst, "down")]
        return LinkRoute(self._branches[to[shared - 1]], (*upwards, *downwards))


@lru_cache(maxsize=64)
def network_of(root: Branch) -> RoutedNetwork:
    """The network of a tree, cached: a fit tries other speeds and processors on one tree thousands of times."""
    return RoutedNetwork(Topology(root))
