"""What compressors did to the accuracy in results/convergence."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from papers.convergence import rows
from papers.convergence.rows import DENSE, Method
from wirebench.errors import UserError
from wirebench.planner.accuracy import Accuracies, Ended, Model
from wirebench.planner.compositions import DENSE as NONE
from wirebench.record.notes import NotedRun

FOLDER = Path(__file__).resolve().parents[2] / "results" / "convergence" / "quick"


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
    found = {label: ended(method, dense) for label, method in plain.items()}
    known = {label: each for label, each in found.items() if each is not None}
    whole = next(method for method in methods if method.label == DENSE)
    return Accuracies(_setting(methods), {NONE: _points(dense, dense, None, whole), **known})


def ended(method: Method, dense: Sequence[float]) -> Ended | None:
    """A method's runs beside the dense ones' accuracies; None where no run came to its end, nor diverged."""
    density = method.runs[0].has("config", "compressor", "density")
    # One seed that diverged is enough.
    if any(run.diverged for run in method.runs):
        return Ended(None, density, model=model_of(method.runs[0]))
    return _points(method.top1, dense, density, method) if method.top1 else None


def _points(top1: Sequence[float], dense: Sequence[float], density: float | None, method: Method) -> Ended:
    """Points of these seeds above the mean of the dense seeds."""
    usual = statistics.mean(dense)
    between = (100 * (min(top1) - usual), 100 * (max(top1) - usual)) if len(top1) > 1 else None
    worst = 100 * (min(dense) - usual)
    points = 100 * (statistics.mean(top1) - usual)
    return Ended(points, density, between, dense=worst, model=model_of(method.runs[0]))


def model_of(run: NotedRun) -> Model:
    """What a run trained: of a language model also how many tokens it had for each parameter."""
    parameters, name = run.record["parameters"], run.has("config", "model", "name")
    size, samples = f"{parameters / 1e6:.2g}M parameters", run.has("samples") or {}
    if tokens := samples.get("tokens"):
        seen = samples["train"] * tokens * (run.has("config", "train", "epochs") or 1) / parameters
        return Model(f"a {name.upper()} of {size}, {seen:.1f} tokens a parameter", parameters)
    depth = run.has("config", "model", "depth")
    return Model(f"{name}{f' depth={depth}' if depth else ''} of {size}", parameters)


def _setting(methods: list[Method]) -> str:
    settings = rows.shared(methods)
    seeds = max(len(method.runs) for method in methods)
    depth = f" depth={settings['depth']}" if "depth" in settings else ""
    density = f", density {settings['density']} after a warm-up" if "density" in settings else ""
    many = "one seed, so that a point means little" if seeds == 1 else f"up to {seeds} seeds"
    trained = f"{settings.get('model')}{depth}, {settings.get('epochs')} epochs of {settings.get('data')}"
    return f"{trained}, {settings['workers']} workers{density}; {many}"
