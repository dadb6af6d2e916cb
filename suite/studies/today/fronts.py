"""Who is on the Pareto front of the final loss, by bytes and by time on each network, and who is so by chance."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from suite.studies.convergence.rows import Method
from suite.studies.significance import Comparison
from suite.studies.today.outcome import against, bytes_of, losses, multiplicity
from suite.studies.today.times import RATES, Yardstick, mean_pace
from wirebench.utils.markdown import table

Cost = Callable[[Method], float | None]


def fronts(methods: Sequence[Method], by: Yardstick) -> list[str]:
    """The table. A method that its seeds do not tell apart from the cheaper one before it is marked."""

    def seconds(rate: float) -> Cost:
        def of(method: Method) -> float | None:
            found = mean_pace(method, rate, by)
            return None if found is None else found.seconds

        return of

    costs = {"bytes": bytes_of, **{f"time at {rate:g} Gbit/s": seconds(rate) for rate in RATES}}
    found = {name: marked(methods, cost) for name, cost in costs.items()}
    return [
        "Nobody reaches a smaller mean loss for less, cheapest first:",
        "",
        *table(("cost", "methods"), [[name, words] for name, (words, _) in found.items()]),
        multiplicity(compared for _, those in found.values() for compared in those),
        "",
    ]


def marked(methods: Sequence[Method], cost: Cost) -> tuple[str, list[Comparison | None]]:
    """The front in words, and the comparison of each of its methods with the one before."""
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
    return ", ".join([*names[:1], *words]) or "-", compared


def front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """The names on the Pareto front: nobody has both a smaller cost and a smaller loss; cheapest first."""
    on: list[str] = []
    best = float("inf")
    for name, (_, loss) in sorted(points.items(), key=lambda item: (item[1], item[0])):
        if loss < best:
            on.append(name)
            best = loss
    return on
