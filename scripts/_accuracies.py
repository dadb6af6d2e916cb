"""What compressors did to the accuracy in results/convergence, to be read beside what they gain."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from scripts import _convergence_runs
from scripts._convergence_runs import DENSE, Method

FOLDER = Path(__file__).resolve().parents[1] / "results" / "convergence"


@dataclass(frozen=True)
class Accuracies:
    """Runs of compressors with their own options, beside dense ones.

    setting  what they trained, in words; "" where there are none
    lost     points of top-1 that a compressor ended below dense; None: it diverged
    """

    setting: str
    lost: dict[str, float | None]

    def cell(self, name: str) -> str:
        """Of a table: signed points, "diverged", or "" where it was not measured."""
        if name not in self.lost:
            return ""
        points = self.lost[name]
        return "diverged" if points is None else f"{0.0 - round(points, 1):+.1f}"

    def diverged(self, name: str) -> bool:
        """Whether it was seen to."""
        return name in self.lost and self.lost[name] is None


def load(folder: Path = FOLDER) -> Accuracies:
    """The folder of scripts/convergence.py; empty where nothing was measured, UserError for damaged records."""
    methods = _convergence_runs.load(folder)
    dense = next((method.top1 for method in methods if method.label == DENSE), [])
    if not dense:
        return Accuracies("", {})
    # A label with options is a variant.
    plain = [method for method in methods if " " not in method.label and method.label != DENSE]
    ended = {method.label: _lost(method, statistics.mean(dense)) for method in plain if method.runs}
    return Accuracies(_setting(methods), ended)


def _lost(method: Method, dense: float) -> float | None:
    """One seed that diverged is enough."""
    if any(run.diverged for run in method.runs) or not method.top1:
        return None
    return 100 * (dense - statistics.mean(method.top1))


def _setting(methods: list[Method]) -> str:
    found = _convergence_runs.shared(methods)
    density = f", density {found['density']}" if "density" in found else ""
    return f"ResNet-{found['depth']}, {found['epochs']} epochs of CIFAR-10, {found['workers']} workers{density}"
