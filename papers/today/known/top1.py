"""What the methods did to the accuracy of small ResNets: results/convergence, and results/today/resnet.

Each study holds its methods against its own dense runs.
"""

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


def load(folder: Path = FOLDER, larger: Path = LARGER) -> tuple[Accuracies, Accuracies]:
    """The network with most methods, and the larger one; a damaged record leaves its study out."""
    return _with_today(accuracies.load(), folder), accuracies.load(larger)


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
