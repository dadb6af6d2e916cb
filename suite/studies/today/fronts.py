"""Who is on the Pareto front of the final loss, by bytes and by time on each network, and who is so by chance."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from suite.studies.convergence.rows import Method
from suite.studies.significance import Comparison
from suite.studies.today.outcome import against, bytes_of, losses, multiplicity
from suite.studies.today.times import RATES, Yardstick, mean_pace
from wirebench.utils.markdown import table

Cost = Callable[[Method], float | None]


def fronts(methods: Sequence[Method], by: Yardstick) -> list[str]:
    """The table. A method that its seeds do not tell apart from the cheaper one before it is marked.

    methods  all of a task, dense training on fewer tokens, too
    """

    def seconds(rate: float, overlapped: bool) -> Cost:
        def of(method: Method) -> float | None:
            found = mean_pace(method, rate, by)
            return None if found is None else found.at_best if overlapped else found.seconds

        return of

    costs: dict[str, Cost] = {"bytes": bytes_of}
    for rate in RATES:
        costs[f"time at {rate:g} Gbit/s"] = seconds(rate, overlapped=False)
        costs[f"time at {rate:g} Gbit/s, gradients beside the backward pass"] = seconds(rate, overlapped=True)
    found = {name: marked(methods, cost) for name, cost in costs.items()}
    return [
        "Nobody reaches a smaller mean loss for less, cheapest first. `near`: dearer than a method on the front, with "
        "a mean loss that is no smaller, but its seeds do not tell the two apart. `of`: how many methods have it; "
        "one without a run that keeps the rule of load has no time, and is on no front of times:",
        "",
        *table(
            ("cost", "of", "methods", "near"),
            [[name, f"{each.known} of {len(methods)}", each.words, each.near] for name, each in found.items()],
        ),
        multiplicity(compared for each in found.values() for compared in each.compared),
        "",
    ]


class Marked(NamedTuple):
    """A front in words, who is near it, the comparisons that this rests on, and how many methods have a cost."""

    words: str
    near: str
    compared: list[Comparison | None]
    known: int


def marked(methods: Sequence[Method], cost: Cost) -> Marked:
    """The front of these methods by this cost."""
    known = {method.label: losses(method) for method in methods}
    points = {
        method.label: (price, statistics.mean(known[method.label]))
        for method in methods
        if known[method.label] and (price := cost(method)) is not None
    }
    names = front(points)
    pairs = list(pairwise(names))
    compared = [against(known[name], known[before], margin=0.0) for before, name in pairs]
    words = [
        name if one is not None and one.said == "better" else f"{name} (not told apart from {before})"
        for (before, name), one in zip(pairs, compared, strict=True)
    ]
    # Of those on the front that cost no more the last one has the least loss.
    behind = {
        name: [each for each in names if points[each][0] <= price][-1]
        for name, (price, _) in points.items()
        if name not in names
    }
    beaten = {name: against(known[ahead], known[name], margin=0.0) for name, ahead in behind.items()}
    near = [name for name, one in beaten.items() if one is None or one.said != "better"]
    every = [*compared, *beaten.values()]
    return Marked(", ".join([*names[:1], *words]) or "-", ", ".join(near) or "-", every, len(points))


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names on the Pareto front: nobody has both a smaller cost and a smaller loss; cheapest first."""
    on: list[str] = []
    best = float("inf")
    for name, (_, loss) in sorted(points.items(), key=lambda item: (item[1], item[0])):
        if loss < best:
            on.append(name)
            best = loss
    return on
