"""What the methods did to the loss of the study's language model in results/today/gpt."""

import math
import statistics
from collections import defaultdict
from pathlib import Path

from suite.planner.accuracy import LOSS, Accuracies, Ended, ratio
from suite.studies.convergence import rows
from suite.studies.convergence.rows import Method
from suite.studies.runner import RESULTS
from suite.studies.today.known.sources import Source, sources
from suite.studies.today.outcome import losses
from suite.studies.today.tasks import DENSE, GPT, OWN, QUARTER
from wirebench.errors import UserError

FOLDER = RESULTS / "today" / GPT.name


def load(folder: Path = FOLDER) -> Accuracies:
    """The study's GPT; empty where nothing was measured or a record is damaged."""
    try:
        methods = {method.label: method for method in rows.load(folder, own=OWN)}
    except UserError as error:
        # The ranking is of use without.
        return Accuracies(f"nothing, {error}", {}, measure=LOSS)
    dense = losses(methods[DENSE]) if DENSE in methods else []
    if not dense:
        return Accuracies("", {}, measure=LOSS)
    known: dict[str, Ended] = {}
    local: defaultdict[str, list[Ended]] = defaultdict(list)
    for source in (each for each in sources(GPT) if each.label in methods):
        ended = _ended(methods[source.label], statistics.mean(dense), source)
        if source.schedule:
            local[source.compressor].append(ended)
        else:
            known[source.compressor] = ended
    too_much, limit = _limit(losses(methods[QUARTER]) if QUARTER in methods else [], statistics.mean(dense))
    return Accuracies(_setting(methods), known, dict(local), LOSS, too_much, limit)


def _ended(method: Method, dense: float, source: Source) -> Ended:
    """Percent of the dense runs' mean loss, below it. One seed that diverged is enough."""
    density, ended = method.runs[0].has("config", "compressor", "density"), losses(method)
    below = [100 * (1 - loss / dense) for loss in ended]
    mean, between = (statistics.mean(below), (min(below), max(below))) if below else (None, None)
    return Ended(mean, density, between if len(below) > 1 else None, LOSS, source.schedule, source.options)


def _limit(quarter: list[float], dense: float) -> tuple[float, str]:
    """What a method may lose at most, in percent, and in words.

    What loses more is no better than dense training that ends after a quarter of the tokens, and compresses nothing.

    quarter  losses of that; none: no limit
    """
    if not quarter:
        return math.inf, ""
    most = 100 * (statistics.mean(quarter) / dense - 1)
    return most, f", above dense training's on a quarter of the tokens ({ratio(-most):.3f})"


def _setting(methods: dict[str, Method]) -> str:
    settings, seeds = rows.shared([methods[DENSE]]), max(len(method.runs) for method in methods.values())
    many = "one seed, so that a small difference means little" if seeds == 1 else f"up to {seeds} seeds"
    steps = methods[DENSE].runs[0].record["steps_done"]
    trained = f"gpt depth={settings['depth']} width={settings['width']}, {steps} steps of {settings['data']}"
    return f"{trained}, {settings['workers']} workers, AdamW or the method's own optimizer; {many}"
