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

    meeting: BranchPath
    links: tuple[DirectedLink, ...]


class CrossedLink(NamedTuple):
    """A link that messages of a round cross: its level's number, and the numbers of those messages."""

    link: DirectedLink
    level: int
    messages: tuple[int, ...]


class Crossings(NamedTuple):
    """The ways of a round's messages.

    meetings  for each message the number of the level at which its ranks meet
    links     all that are crossed; names: their own
    kinds     for each link the place in `firsts` of the first one of its level with as many messages
    """

    meetings: tuple[int, ...]
    links: tuple[CrossedLink, ...]
    names: tuple[DirectedLink, ...]
    kinds: tuple[int, ...]
    firsts: tuple[CrossedLink, ...]


class RoutedNetwork:
    """The routes of a topology, each worked out once.

    levels  branches of which no two have links of the same speed: a level's number is its place here
    """

    def __init__(self, topology: Topology) -> None:
        self._chains = topology.chains
        of_speed = {branch.links: branch for branch in topology.branches.values()}
        self.levels = tuple(of_speed.values())
        place = {links: number for number, links in enumerate(of_speed)}
        self._level = {path: place[branch.links] for path, branch in topology.branches.items()}
        self._routes: dict[tuple[int, int], LinkRoute] = {}
        self._crossings: dict[tuple[tuple[int, int], ...], Crossings] = {}

    def route(self, src: int, dst: int) -> LinkRoute:
        """The way from rank `src` to rank `dst`."""
        if (src, dst) not in self._routes:
            self._routes[src, dst] = self._find(src, dst)
        return self._routes[src, dst]

    def crossings(self, ends: tuple[tuple[int, int], ...]) -> Crossings:
        """The ways of messages with these senders and receivers."""
        if ends not in self._crossings:
            routes, crossing = [self.route(*each) for each in ends], dict[DirectedLink, list[int]]()
            for number, route in enumerate(routes):
                for link in route.links:
                    crossing.setdefault(link, []).append(number)
            links = tuple(CrossedLink(link, self._above(link[0]), tuple(those)) for link, those in crossing.items())
            like = [(link.level, len(link.messages)) for link in links]
            firsts = {kind: link for kind, link in reversed(list(zip(like, links, strict=True)))}
            place = {kind: number for number, kind in enumerate(firsts)}
            meetings, kinds = (self._level[route.meeting] for route in routes), (place[kind] for kind in like)
            self._crossings[ends] = Crossings(
                tuple(meetings), links, tuple(crossing), tuple(kinds), tuple(firsts.values())
            )
        return self._crossings[ends]

    def _above(self, node: int | BranchPath) -> int:
        """The level of the parent of a rank or of a branch, which knows the speed of the link between the two."""
        return self._level[self._chains[node][-1] if isinstance(node, int) else node[:-1]]

    def _find(self, src: int, dst: int) -> LinkRoute:
        from_root, to = self._chains[src], self._chains[dst]
        shared = sum(a == b for a, b in zip(from_root, to, strict=False))
        upwards: list[DirectedLink] = [(src, "up"), *((path, "up") for path in reversed(from_root[shared:]))]
        downwards: list[DirectedLink] = [*((path, "down") for path in to[shared:]), (dst, "down")]
        return LinkRoute(to[shared - 1], (*upwards, *downwards))


@lru_cache(maxsize=64)
def network_of(root: Branch) -> RoutedNetwork:
    """The network of a tree, cached: a fit tries other speeds and processors on one tree thousands of times."""
    return RoutedNetwork(Topology(root))
