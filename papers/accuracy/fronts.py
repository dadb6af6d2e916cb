"""Who is on the Pareto front of the final loss, by bytes and by time on each network, and who is so by chance."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from papers.accuracy.rows import Method, against, bytes_of, losses
from papers.accuracy.times import RATES, Yardstick, run_seconds
from papers.significance import Comparison, corrected
from wirebench.planner.dense import ALIKE
from wirebench.utils.markdown import table

Cost = Callable[[Method], float | None]


def fronts(methods: Sequence[Method], by: Yardstick) -> list[str]:
    """The table, by the cost of whole runs. A method that is not shown to be better than all cheaper ones is marked.

    methods  all of a task, dense training on fewer tokens, too
    """

    def seconds(rate: float, overlapped: bool) -> Cost:
        return lambda method: run_seconds(method, rate, by, overlapped)

    costs: dict[str, Cost] = {"bytes": bytes_of}
    for rate in RATES:
        costs[f"time at {rate:g} Gbit/s"] = seconds(rate, overlapped=False)
        costs[f"time at {rate:g} Gbit/s, overlapped"] = seconds(rate, overlapped=True)
    every = {name: marked(methods, cost, 0.0 if cost is bytes_of else ALIKE) for name, cost in costs.items()}
    found = {name: each for name, each in every.items() if each.known > 1}
    return [
        "The Pareto front: no method reaches a smaller mean loss at a lower cost of the whole run, the cheapest first. "
        "`near`: costs more than a method on the front, and its mean loss is no smaller, but its seeds do not tell the "
        f"two apart. Times that differ by {100 * ALIKE:g} % or less are the same cost. `overlapped`: each exchange of "
        "gradients with its backward pass. `of`: how many methods have such a cost; a method has a time if one of "
        "its runs keeps the rule of load:",
        "",
        *table(
            ("cost", "of", "methods", "near"),
            [[name, f"{each.known} of {len(methods)}", each.words, each.near] for name, each in found.items()],
        ),
        f"{sum(one is not None and one.p is not None for each in found.values() for one in each.compared)} "
        "comparisons, those of a line together at 5 % (Holm).",
        "",
    ]


class Marked(NamedTuple):
    """A front in words, who is near it, the comparisons that this rests on, and how many methods have a cost."""

    words: str
    near: str
    compared: list[Comparison | None]
    known: int


def marked(methods: Sequence[Method], cost: Cost, alike: float = 0.0) -> Marked:
    """The front of these methods by this cost; `alike`: the share by which costs do not differ."""
    known = {method.label: losses(method) for method in methods}
    points = {
        method.label: (price, statistics.mean(known[method.label]))
        for method in methods
        if known[method.label] and (price := cost(method)) is not None
    }
    names = front(points, alike)
    pairs = [(name, before) for place, name in enumerate(names) for before in names[:place]]
    # Of those on the front that cost no more the last one has the least loss.
    behind = {
        name: [each for each in names if (1 - alike) * points[each][0] <= price][-1]
        for name, (price, _) in points.items()
        if name not in names
    }
    pairs += [(ahead, name) for name, ahead in behind.items()]
    every = corrected([against(known[ours], known[theirs], margin=0.0) for ours, theirs in pairs])
    compared = dict(zip(pairs, every, strict=True))
    cheaper = {name: {each: compared[name, each] for each in names[:place]} for place, name in enumerate(names)}
    words = [name + _doubt([each for each in those.items() if not _better(each[1])]) for name, those in cheaper.items()]
    beaten = {name: compared[ahead, name] for name, ahead in behind.items()}
    near = [name + _doubt([("", one)], "") for name, one in beaten.items() if not _better(one)]
    return Marked(", ".join(words) or "-", ", ".join(near) or "-", every, len(points))


def _better(one: Comparison | None) -> bool:
    return one is not None and one.said == "better"


def _doubt(those: Sequence[tuple[str, Comparison | None]], alike: str = " (not told apart from {})") -> str:
    """What is behind a name that is not shown to be better than these; "" without any."""
    if any(one is None or one.p is None for _, one in those):
        return " (too few seeds)"
    return alike.format(", ".join(name for name, _ in those)) if those else ""


def front(points: Mapping[str, tuple[float, float]], alike: float = 0.0) -> list[str]:
    """The names on the Pareto front: none on it has a smaller loss at a smaller or equal cost; cheapest first.

    alike  the share by which a cost has to be smaller, to be smaller at all
    """
    on: list[str] = []
    least = float("inf")
    for name, (price, _) in sorted(points.items(), key=lambda item: (item[1][::-1], item[0])):
        if price < (1 - alike) * least:
            on.insert(0, name)
            least = price
    return on
