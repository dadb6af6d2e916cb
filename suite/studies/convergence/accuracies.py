"""What compressors did to the accuracy in results/convergence."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from suite.planner.accuracy import Accuracies, Ended
from suite.planner.compositions import DENSE as NONE
from suite.studies.convergence import rows
from suite.studies.convergence.rows import DENSE, Method
from wirebench.errors import UserError

FOLDER = Path(__file__).resolve().parents[3] / "results" / "convergence" / "quick"


def load(folder: Path = FOLDER) -> Accuracies:
    """The folder of a task of the study convergence; empty where nothing was measured or a record is damaged."""
    try:
        methods = rows.load(folder)
    except UserError as error:
        # The ranking is of use without.
        return Accuracies(f"nothing, {error}", {})
    dense = next((method.top1 for method in methods if method.label == DENSE), [])
    if not dense:
        return Accuracies("", {})
    # A label with options is a variant.
    plain = {method.label: method for method in methods if " " not in method.label and method.label != DENSE}
    found = {label: ended(method, statistics.mean(dense)) for label, method in plain.items()}
    known = {label: each for label, each in found.items() if each is not None}
    return Accuracies(_setting(methods), {NONE: _points(dense, statistics.mean(dense), None), **known})


def ended(method: Method, dense: float) -> Ended | None:
    """A method's runs beside the dense ones' mean; None where no run came to its end, nor diverged."""
    density = method.runs[0].has("config", "compressor", "density")
    # One seed that diverged is enough.
    if any(run.diverged for run in method.runs):
        return Ended(None, density)
    return _points(method.top1, dense, density) if method.top1 else None


def _points(top1: Sequence[float], dense: float, density: float | None) -> Ended:
    """Of these seeds, above the mean of the dense ones."""
    between = (100 * (min(top1) - dense), 100 * (max(top1) - dense)) if len(top1) > 1 else None
    return Ended(100 * (statistics.mean(top1) - dense), density, between)


def _setting(methods: list[Method]) -> str:
    settings = rows.shared(methods)
    seeds = max(len(method.runs) for method in methods)
    depth = f" depth={settings['depth']}" if "depth" in settings else ""
    density = f", density {settings['density']} after a warm-up" if "density" in settings else ""
    many = "one seed, so that a point means little" if seeds == 1 else f"up to {seeds} seeds"
    trained = f"{settings.get('model')}{depth}, {settings.get('epochs')} epochs of {settings.get('data')}"
    return f"{trained}, {settings['workers']} workers{density}; {many}"
