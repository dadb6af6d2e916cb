"""What the methods did to the loss of the study's language model in results/today/gpt."""

import math
import statistics
from pathlib import Path

from suite.planner.accuracy import LOSS, Accuracies, Ended, ratio
from suite.studies.convergence import rows
from suite.studies.convergence.rows import Method
from suite.studies.runner import RESULTS
from suite.studies.today.outcome import losses
from suite.studies.today.rates import OWN
from suite.studies.today.tasks import DENSE, QUARTER, SETTINGS
from wirebench.errors import UserError

FOLDER = RESULTS / "today" / "gpt"
SCHEDULES = ("outer", "outer:every=30")
"""That the study's local steps have, in the planner's words; the first has 30 as its default."""
_VARIANTS = ("gs_sgd momentum=0", "sparseloco topk")
"""Rows that stand for a compressor, though they have options: without, it would apply AdamW's momentum a second time;
and of top-k after local steps there is no other."""


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
    mean = statistics.mean(dense)
    found = {key: _ended(methods[label], mean) for key, label in labels().items() if label in methods}
    known, local = ({name: found[name, after] for name, after in found if after == each} for each in (False, True))
    too_much, limit = _limit(losses(methods[QUARTER]) if QUARTER in methods else [], mean)
    return Accuracies(_setting(methods), known, local, SCHEDULES, LOSS, too_much, limit)


def labels() -> dict[tuple[str, bool], str]:
    """By compressor, and whether it exchanges after local steps, the row that stands for it: the first without options.

    Rows with another optimizer than the task's or the method's own are left out.
    """
    found: dict[tuple[str, bool], str] = {}
    for label, words in SETTINGS["gpt"].items():
        if (" " in label and label not in _VARIANTS) or "optimizer.name=muon" in words:
            continue
        name = next(word.partition("=")[2] for word in words if word.startswith("compressor.name="))
        found.setdefault((name, "scheduler.name=outer" in words), label)
    return found


def _ended(method: Method, dense: float) -> Ended:
    """Percent of the dense runs' mean loss, below it. One seed that diverged is enough."""
    density = method.runs[0].has("config", "compressor", "density")
    ended = losses(method)
    if not ended:
        return Ended(None, density, None, LOSS)
    below = [100 * (1 - loss / dense) for loss in ended]
    between = (min(below), max(below)) if len(below) > 1 else None
    return Ended(statistics.mean(below), density, between, LOSS)


def _limit(quarter: list[float], dense: float) -> tuple[float, str]:
    """What a method may lose at most, in percent, and in words: to lose more, it would have to be four times as fast.

    quarter  losses of dense training on a quarter of the tokens; none: no limit
    """
    if not quarter:
        return math.inf, ""
    most = 100 * (statistics.mean(quarter) / dense - 1)
    return most, f", above dense training's on a quarter of the tokens ({ratio(-most):.3f})"


def _setting(methods: dict[str, Method]) -> str:
    settings = rows.shared([methods[DENSE]])
    seeds = max(len(method.runs) for method in methods.values())
    many = "one seed, so that little means little" if seeds == 1 else f"up to {seeds} seeds"
    steps = methods[DENSE].runs[0].record["steps_done"]
    trained = f"gpt depth={settings['depth']} width={settings['width']}, {steps} steps of {settings['data']}"
    return f"{trained}, {settings['workers']} workers, AdamW or the method's own optimizer; {many}"
