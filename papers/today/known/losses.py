"""What the methods did to the loss of the study's language model in results/today/gpt."""

import math
import statistics
from collections import defaultdict
from pathlib import Path

from papers.convergence import rows
from papers.convergence.accuracies import model_of
from papers.convergence.rows import Method
from papers.runner import RESULTS
from papers.today.known.sources import Source, sources
from papers.today.outcome import losses
from papers.today.tasks import DENSE, GPT, LARGER, OWN, QUARTER, SHORTER
from papers.today.times import dense_runs
from wirebench.errors import UserError
from wirebench.planner.accuracy import LOSS, Accuracies, Ended
from wirebench.planner.dense import DenseForms

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
        ended = _ended(methods[source.label], dense, source)
        if source.schedule:
            local[source.compressor].append(ended)
        else:
            known[source.compressor] = ended
    too_much = _too_much(losses(methods[QUARTER]) if QUARTER in methods else [], statistics.mean(dense))
    return Accuracies(_setting(methods), known, dict(local), LOSS, too_much, _dense_in(methods))


def _ended(method: Method, dense: list[float], source: Source) -> Ended:
    """Percent of the dense runs' mean loss, below it. One seed that diverged is enough."""
    density, usual = method.runs[0].has("config", "compressor", "density"), statistics.mean(dense)
    below = [100 * (1 - loss / usual) for loss in losses(method)]
    mean, between = (statistics.mean(below), (min(below), max(below))) if below else (None, None)
    several, worst = between if len(below) > 1 else None, 100 * (1 - max(dense) / usual)
    return Ended(mean, density, several, LOSS, source.schedule, source.options, worst, model_of(method.runs[0]))


def _too_much(quarter: list[float], dense: float) -> float:
    """What a method may lose at most, in percent.

    What loses more is no better than dense training that ends after a quarter of the tokens, and compresses nothing.

    quarter  losses of that; none: no limit
    """
    return 100 * (statistics.mean(quarter) / dense - 1) if quarter else math.inf


def _dense_in(methods: dict[str, Method]) -> DenseForms | None:
    """All forms of the study's dense training; None without those on fewer tokens."""
    forms = [methods[label] for label in (DENSE, *SHORTER, *LARGER) if label in methods and losses(methods[label])]
    if not any(each.label in SHORTER for each in forms):
        return None
    return DenseForms(tuple(map(dense_runs, forms)))


def _setting(methods: dict[str, Method]) -> str:
    settings, seeds = rows.shared([methods[DENSE]]), max(len(method.runs) for method in methods.values())
    many = "one seed, so that a small difference means little" if seeds == 1 else f"up to {seeds} seeds"
    steps = methods[DENSE].runs[0].record["steps_done"]
    trained = f"gpt depth={settings['depth']} width={settings['width']}, {steps} steps of {settings['data']}"
    return f"{trained}, {settings['workers']} workers, AdamW or the method's own optimizer; {many}"
