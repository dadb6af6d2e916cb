"""What the methods did to the accuracy of the study's ResNet: results/today/resnet beside results/convergence.

Both studies train the same network on the same images for as long; each is held against its own dense runs.
"""

import statistics
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from suite.planner.accuracy import Accuracies, Ended
from suite.studies.convergence import accuracies, rows
from suite.studies.runner import RESULTS
from suite.studies.today.known.sources import Source, sources
from suite.studies.today.tasks import DENSE, OWN, RESNET
from wirebench.errors import UserError

FOLDER = RESULTS / "today" / RESNET.name


def load(folder: Path = FOLDER) -> Accuracies:
    """The study of convergence, and of this one what that lacks; a damaged record leaves its study out."""
    known = accuracies.load()
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
        ended = accuracies.ended(methods[source.label], statistics.mean(dense))
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
