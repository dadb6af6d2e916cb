"""Rounds within a group of ranks: the building blocks of the collectives.

A group lists its ranks in the order that the algorithm numbers them. Rounds may hold transfers of no items;
`plan.rounds_of` leaves those out.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from math import prod

from wirebench.collectives.plan import Transfer

Rounds = list[list[Transfer]]


def even_bounds(items: int, parts: int) -> list[int]:
    """The parts + 1 bounds that divide `items` items into `parts` parts, which differ by at most one item."""
    return [items * part // parts for part in range(parts + 1)]


def strides(count: int) -> list[int]:
    """The powers of two 1, 2, 4, ... below `count`."""
    return [1 << exponent for exponent in range((count - 1).bit_length())]


def ring_reduce_scatter(members: Sequence[int], bounds: Sequence[int]) -> Rounds:
    """Member p ends with the sum of items [bounds[p], bounds[p + 1]); in each round all send one part to the next."""
    return _around(members, bounds, 1)


def ring_all_gather(members: Sequence[int], bounds: Sequence[int]) -> Rounds:
    """Items [bounds[p], bounds[p + 1]) go from member p to all others; in each round all send one part to the next."""
    return _around(members, bounds, 0)


def _around(members: Sequence[int], bounds: Sequence[int], behind: int) -> Rounds:
    """The rounds of a ring, in the first of which each member sends the part `behind` places before its own."""
    count = len(members)

    def hop(place: int, part: int) -> Transfer:
        return Transfer(members[place], members[(place + 1) % count], bounds[part], bounds[part + 1])

    return [[hop(place, (place - step - behind) % count) for place in range(count)] for step in range(count - 1)]


def direct_reduce_scatter(members: Sequence[int], bounds: Sequence[int]) -> Rounds:
    """Member p ends with the sum of items [bounds[p], bounds[p + 1]), which all send to it in one round.

    Each begins with its right neighbour: if all began with one member, its link would be the bottleneck.
    """
    count = len(members)
    return [
        [
            Transfer(members[place], members[to], bounds[to], bounds[to + 1])
            for turn in range(1, count)
            for place in range(count)
            for to in [(place + turn) % count]
        ]
    ]


def level_rounds(
    ranks: Sequence[int],
    factors: Sequence[int],
    items: int,
    of_group: Callable[[Sequence[int], Sequence[int]], Rounds],
) -> Rounds:
    """The reduce-scatters, or the all-gathers, of one level.

    A rank's place in `ranks` is a number in mixed radix; those that differ in the last digit alone form a group.
    factors   the level's is the last one; the others are of the levels below
    of_group  the rounds of a group, of its members and the bounds of what they share out
    """
    *inner, degree = factors
    stride = prod(inner)
    groups = []
    for place in range(len(ranks)):
        if place // stride % degree:
            continue
        # Exact fractions, rounded down once: part p of this level begins at item floor(items * p / parts).
        first, parts = _part(place, inner) * degree, stride * degree
        bounds = [items * (first + coordinate) // parts for coordinate in range(degree + 1)]
        groups.append(of_group(ranks[place : place + stride * degree : stride], bounds))
    return side_by_side(groups)


def _part(place: int, inner: Sequence[int]) -> int:
    """The number of the part that the rank at this place holds after the levels of `inner`.

    The vector then has as many equal parts as the product of `inner`.
    """
    part = 0
    for factor in inner:
        place, coordinate = divmod(place, factor)
        part = part * factor + coordinate
    return part


def binomial_reduce(members: Sequence[int], items: int) -> Rounds:
    """The first member ends with the sum of all items: in round s = 1, 2, 4, ... member q = s mod 2s sends to q - s."""
    count = len(members)
    return [[Transfer(members[q], members[q - s], 0, items) for q in range(s, count, 2 * s)] for s in strides(count)]


def fold(members: Sequence[int], items: int) -> tuple[Rounds, list[int]]:
    """Bring any number of members to a power of two: a round before, and the members that take part after it.

    With r members too many, each second one of the first 2r sends everything to the one before it, so that the pairs
    tend to lie within a machine. (Thakur, Rabenseifner and Gropp, IJHPCA 2005, section 4.5.)
    """
    excess = len(members) - (1 << (len(members).bit_length() - 1))
    pairs = [(members[2 * pair], members[2 * pair + 1]) for pair in range(excess)]
    survivors = [stays for stays, _ in pairs] + list(members[2 * excess :])
    return [[Transfer(leaves, stays, 0, items) for stays, leaves in pairs]], survivors


def side_by_side(groups: Iterable[Rounds]) -> Rounds:
    """The rounds of several groups run at the same time: the n-th rounds of all groups are one round."""
    return [[t for transfers in rounds for t in transfers] for rounds in zip_longest(*groups, fillvalue=())]
