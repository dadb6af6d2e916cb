"""Where the ranks are: a tree of switches and machines, with the speed of its links.

Leaves are ranks. A branch is a machine (its children are ranks) or a switch (its children are branches). A link joins a
node to its parent and carries both directions at once, each at the full rate.
"""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from wirebench.errors import UserError
from wirebench.topology.processor import IDLE, Processor

BranchPath = tuple[int, ...]
"""Which child to take at each branch, from the root downwards: the name of a node."""


@dataclass(frozen=True)
class Link:
    """The speed of a link for messages of at least `from_bytes` bytes: latency_seconds + bytes / bytes_per_second.

    A latency counts once per message that a rank sends or receives (alpha of the papers), the rate is shared by all
    messages that cross the link at the same time (1 / beta). A link of several `lanes` has the rate on each of them,
    and what a rank sends or gets takes one: a machine on rails has a lane for every GPU.
    """

    latency_seconds: float
    bytes_per_second: float
    from_bytes: float = 0.0
    lanes: int = 1
    head_start_seconds: float = 0.0

    def __post_init__(self) -> None:
        # A fitted start-up time may be negative where the line starts at large messages.
        if not (math.isfinite(self.latency_seconds) and self.bytes_per_second > 0 and self.from_bytes >= 0):
            raise ValueError(f"a link needs a finite latency and a positive rate, got {self}")
        assert self.lanes >= 1, f"a link has at least one lane, got {self.lanes}"

    def busiest(self, messages: float) -> float:
        """How many of `messages` equal messages the busiest lane carries."""
        return max(messages / self.lanes, min(messages, 1))


def check_pieces(links: Sequence[Link]) -> None:
    """Assert that speeds by size of message start at 0 bytes and go upwards."""
    starts = [link.from_bytes for link in links]
    assert starts == sorted(set(starts)), f"links start at rising sizes, got {starts}"
    assert starts[:1] in ([], [0.0]), f"the first link starts at 0 bytes, got {starts}"


def link_for(links: Sequence[Link], message_bytes: float) -> Link:
    """The one of several speeds that holds for messages of this size."""
    if len(links) == 1:  # nearly always, and a fit calls this millions of times
        return links[0]
    return next(link for link in reversed(links) if link.from_bytes <= message_bytes)


@dataclass(frozen=True)
class Branch:
    """A machine or a switch.

    children  branches, or ranks (int)
    links     of each link between this node and its children, by size of message, from 0 bytes upwards; () where the
              speed is not known
    """

    children: tuple["Branch | int", ...]
    links: tuple[Link, ...] = ()

    def __post_init__(self) -> None:
        assert self.children, "a branch has at least one child"
        check_pieces(self.links)

    @property
    def degree(self) -> int:
        """Number of children (d_x of the FlexReduce paper)."""
        return len(self.children)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The ranks below this node, in order."""
        below = ((child,) if isinstance(child, int) else child.ranks for child in self.children)
        return tuple(rank for ranks in below for rank in ranks)

    def link(self, message_bytes: float) -> Link:
        """The speed for messages of this size; ValueError where none is known."""
        if not self.links:
            raise ValueError(
                "the topology has no link speeds: give it latencies and bandwidths before it prices a plan"
            )
        return link_for(self.links, message_bytes)


@dataclass(frozen=True)
class Topology:
    """A cluster.

    root                     the topmost branch; its leaves are the ranks 0 to size - 1, in any order
    reduce_seconds_per_byte  gamma: seconds that a rank takes to add one received byte
    round_seconds            what a round costs for every rank that receives in it, whatever it carries
    shared                   what all messages share, whatever their way, by size of message: the cores of one machine
                             that plays all hosts of an emulated cluster. () on a real one
    native                   the engine's own all-reduce: start-up time of a call, and bus bandwidth, by size of the
                             tensor; () where it was not measured
    processor                what messages and requests cost the ranks' processors
    """

    root: Branch
    reduce_seconds_per_byte: float = 0.0
    round_seconds: float = 0.0
    shared: tuple[Link, ...] = ()
    native: tuple[Link, ...] = ()
    processor: Processor = IDLE

    def __post_init__(self) -> None:
        check_pieces(self.shared)
        check_pieces(self.native)
        assert sorted(self.root.ranks) == list(range(self.size)), f"leaves are not 0 to P - 1: {self.root.ranks}"

    @classmethod
    def flat(cls, size: int, link: Link | None = None) -> "Topology":
        """`size` ranks in one machine."""
        assert size >= 1, f"a topology has at least one rank, got {size}"
        return cls(Branch(tuple(range(size)), (link,) if link else ()))

    @classmethod
    def parse(cls, layout: str, links: Sequence[Link] = ()) -> "Topology":
        """A layout in words: "4" is one machine of four ranks, "2+3" two machines under a switch.

        Brackets nest switches: "(2+2)+(3)". Ranks count up from left to right. `links` are the speeds of the levels
        from the lowest (inside machines) to the root. Raises UserError for a layout that cannot be read, or fewer
        `links` than levels.
        """
        tokens = re.findall(r"\d+|\S", layout)
        root, rest = _sum(layout, tokens, iter(range(_count(layout, tokens))))
        if rest:
            raise _unreadable(layout)
        topology = cls(root)
        return topology.with_links(links) if links else topology

    @classmethod
    def of_hosts(cls, hosts: Sequence[str]) -> "Topology":
        """The topology for the host names of all ranks, in rank order: one machine per host, under one switch."""
        machines = [tuple(r for r, host in enumerate(hosts) if host == name) for name in dict.fromkeys(hosts)]
        if len(machines) == 1:
            return cls(Branch(machines[0]))
        return cls(Branch(tuple(Branch(machine) for machine in machines)))

    @cached_property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.root.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks in leaf order (depth first), so that a machine's ranks are contiguous."""
        return self.root.ranks

    @cached_property
    def position(self) -> dict[int, int]:
        """Each rank's place in leaf order."""
        return {rank: place for place, rank in enumerate(self.ranks)}

    @cached_property
    def branches(self) -> dict[BranchPath, Branch]:
        """Every branch by its path, parents before children."""
        return dict(_walk((), self.root))

    @property
    def levels(self) -> tuple[tuple[Branch, ...], ...]:
        """Branches by level, the lowest first, the root last: V_0 to V_(L-1) of the FlexReduce paper.

        On a tree whose leaves lie at unequal depths a level is a distance from the root.
        """
        depths = range(max(map(len, self.branches)), -1, -1)
        return tuple(tuple(b for path, b in self.branches.items() if len(path) == depth) for depth in depths)

    @cached_property
    def machines(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each branch that has ranks as children, in leaf order."""
        direct = (tuple(c for c in b.children if isinstance(c, int)) for b in self.branches.values())
        return tuple(sorted((m for m in direct if m), key=lambda m: self.position[m[0]]))

    @cached_property
    def chains(self) -> dict[int, tuple[BranchPath, ...]]:
        """For each rank the paths of the branches above it, from the root to its own machine."""
        chains = {}
        for path, branch in self.branches.items():
            for child in branch.children:
                if isinstance(child, int):
                    chains[child] = tuple(path[:depth] for depth in range(len(path) + 1))
        return chains

    @cached_property
    def degrees(self) -> tuple[int, ...] | None:
        """delta_0 to delta_(L-1), the lowest level first, if all branches of a level have one degree; else None.

        A tree whose leaves lie at unequal depths has none either.
        """
        levels = self.levels
        if any(isinstance(child, int) for level in levels[1:] for branch in level for child in branch.children):
            return None
        of_level = [{branch.degree for branch in level} for level in levels]
        return tuple(min(degrees) for degrees in of_level) if all(len(d) == 1 for d in of_level) else None

    @property
    def layout(self) -> str:
        """The layout as `parse` reads it (which numbers the ranks anew, from left to right)."""
        return _layout(self.root, top=True)

    def with_links(self, links: Sequence[Link | tuple[Link, ...]]) -> "Topology":
        """The same tree with these speeds, one per level from the lowest to the root; UserError where some lack."""
        depth = len(self.levels)
        if len(links) < depth:
            raise UserError(f"topology {self.layout}: {depth} levels of links, but speeds are given for {len(links)}")

        def dressed(node: Branch, distance: int) -> Branch:
            here = links[depth - 1 - distance]
            children = tuple(c if isinstance(c, int) else dressed(c, distance + 1) for c in node.children)
            return Branch(children, (here,) if isinstance(here, Link) else here)

        return replace(self, root=dressed(self.root, 0))


def _walk(path: BranchPath, branch: Branch) -> Iterator[tuple[BranchPath, Branch]]:
    yield path, branch
    for number, child in enumerate(branch.children):
        if isinstance(child, Branch):
            yield from _walk((*path, number), child)


def _layout(branch: Branch, top: bool) -> str:
    ranks = [child for child in branch.children if isinstance(child, int)]
    if len(ranks) == branch.degree:
        return str(branch.degree)
    # Ranks beside branches cannot be written, so they appear as machines of one rank.
    parts = "+".join("1" if isinstance(child, int) else _layout(child, top=False) for child in branch.children)
    return parts if top else f"({parts})"


def _count(layout: str, tokens: list[str]) -> int:
    count = sum(int(token) for token in tokens if token.isdecimal())
    if not 1 <= count <= MAX_RANKS:
        raise _unreadable(layout)
    return count


MAX_RANKS = 65_536


def _sum(layout: str, tokens: list[str], ranks: Iterator[int]) -> tuple[Branch, list[str]]:
    """Parse part + part + ...; returns the branch and the tokens after it. One number alone is one machine."""
    parts = []
    while True:
        part, tokens = _part(layout, tokens, ranks)
        parts.append(part)
        if tokens[:1] != ["+"]:
            break
        tokens = tokens[1:]
    return (parts[0] if len(parts) == 1 else Branch(tuple(parts))), tokens


def _part(layout: str, tokens: list[str], ranks: Iterator[int]) -> tuple[Branch, list[str]]:
    first = tokens[0] if tokens else ""
    if first.isdecimal() and int(first):
        return Branch(tuple(next(ranks) for _ in range(int(first)))), tokens[1:]
    if first != "(":
        raise _unreadable(layout)
    inner, rest = _sum(layout, tokens[1:], ranks)
    if rest[:1] != [")"]:
        raise _unreadable(layout)
    return inner, rest[1:]


def _unreadable(layout: str) -> UserError:
    return UserError(
        f"topology: cannot read the layout {layout!r}; ranks per machine read 4, 2+3 or (2+2)+(3+1), "
        f"each at least 1, {MAX_RANKS} in all at most"
    )
