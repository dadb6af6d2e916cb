"""What the methods did to the accuracy of small ResNets: results/convergence, and results/today/resnet.

Each study holds its methods against its own dense runs. Of a method that several of them trained, the network counts
whose size is nearest to the model that is asked for.
"""

import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from papers.convergence import accuracies, rows
from papers.runner import RESULTS
from papers.today.known.sources import Source, sources
from papers.today.tasks import DENSE, OWN, RESNET
from wirebench.errors import UserError
from wirebench.planner.accuracy import Accuracies, Ended

FOLDER = RESULTS / "today" / RESNET.name
LARGER = RESULTS / "convergence" / "resnet20"
"""The study of convergence with another network, and fewer methods."""


def load(numel: int | None = None, folder: Path = FOLDER, larger: Path = LARGER) -> Accuracies:
    """What was measured on the network nearest to a model of `numel` parameters; None: on that with most methods.

    A damaged record leaves its study out.
    """
    found = _with_today(accuracies.load(), folder)
    other = accuracies.load(larger)
    if numel is None or not found.known or not other.known:
        return found
    nearest = {
        name: min(filter(None, (found.known.get(name), other.known.get(name))), key=lambda each: _off(each, numel))
        for name in {**found.known, **other.known}
    }
    named = ", ".join(sorted(name for name in nearest if nearest[name] is not found.known.get(name)))
    setting = f"{found.setting}; {named}: {other.setting}" if named else found.setting
    return replace(found, known=nearest, setting=setting)


def _off(ended: Ended, numel: int) -> float:
    """How far the network's size is from the model's, on a scale of factors."""
    return math.inf if ended.model is None else abs(math.log(ended.model.parameters / numel))


def _with_today(known: Accuracies, folder: Path) -> Accuracies:
    """The study of convergence, and of today's what that lacks."""
    try:
        methods = {method.label: method for method in rows.load(folder, own=OWN)}
    except UserError as error:
        # The ranking is of use without.
        return replace(known, setting=f"{known.setting}; {folder}: nothing, {error}")
    dense = methods[DENSE].top1 if DENSE in methods else []
    if not dense or not known.known:
        return known
    more: dict[str, Ended] = {}
    local: defaultdict[str, list[Ended]] = defaultdict(list)
    for source in (each for each in sources(RESNET) if each.label in methods):
        ended = accuracies.ended(methods[source.label], dense)
        if ended is None:
            continue
        ended = _of(source, ended)
        if source.schedule:
            local[source.compressor].append(ended)
        else:
            more[source.compressor] = ended
    seeds = max(len(method.runs) for method in methods.values())
    later = ", ".join(sorted(more.keys() - known.known.keys()))
    where = f"{later} and local steps: up to {seeds} seeds, updates with SGD at rates of their own"
    return replace(known, setting=f"{known.setting}; {where}", known=more | {**known.known}, local=dict(local))


def _of(source: Source, ended: Ended) -> Ended:
    return ended._replace(schedule=source.schedule, options=source.options)
