"""What the methods did to the loss of the study's language model in results/today/gpt."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import compressors
from suite.planner.accuracy import LOSS, Accuracies, Ended, ratio
from suite.planner.schedules import words_of
from suite.studies.convergence import rows
from suite.studies.convergence.rows import Method
from suite.studies.runner import RESULTS
from suite.studies.today.outcome import losses
from suite.studies.today.rates import OWN
from suite.studies.today.tasks import DENSE, OTHER_DENSE, QUARTER, SETTINGS
from wirebench.errors import UserError
from wirebench.utils.parsing import value_of

FOLDER = RESULTS / "today" / "gpt"


class Source(NamedTuple):
    """A row of the study, and what it trained, in the planner's words.

    schedule  with local steps; "": an exchange in every step
    options   of the compressor, that are not its defaults
    """

    label: str
    compressor: str
    schedule: str
    options: str


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
    for source in (each for each in sources() if each.label in methods):
        ended = _ended(methods[source.label], statistics.mean(dense), source)
        if source.schedule:
            local[source.compressor].append(ended)
        else:
            known[source.compressor] = ended
    too_much, limit = _limit(losses(methods[QUARTER]) if QUARTER in methods else [], statistics.mean(dense))
    return Accuracies(_setting(methods), known, dict(local), LOSS, too_much, limit)


def sources() -> list[Source]:
    """Of each compressor its first row in every step, and all after local steps that have its default options.

    Rows with another optimizer than the task's or the method's own, and other forms of dense training, are left out.
    """
    found: list[Source] = []
    for each in _rows():
        first = all((each.compressor, each.schedule) != (other.compressor, other.schedule) for other in found)
        if first and not (each.schedule and each.options):
            found.append(each)
    return found


def _rows() -> Iterator[Source]:
    for label, words in SETTINGS["gpt"].items():
        given = dict(word.split("=", 1) for word in words)
        if label in OTHER_DENSE or given.get("optimizer.name") == "muon":
            continue
        name, schedule = given.pop("compressor.name"), _of(given, "scheduler")
        options, usual = _of(given, "compressor"), compressors.PLUGINS.defaults(name)
        other = [f"{key}={text}" for key, text in options.items() if key != "density" and value_of(text) != usual[key]]
        text = ":".join(f"{key}={value}" for key, value in schedule.items() if key != "name")
        local = words_of(f"outer:{text}".rstrip(":")) if schedule.get("name") == "outer" else ""
        yield Source(label, name, local, " ".join(other))


def _of(given: dict[str, str], section: str) -> dict[str, str]:
    return {key.partition(".")[2]: value for key, value in given.items() if key.startswith(f"{section}.")}


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
