"""What the MG-WFBP paper measured of its networks, predicted with one fitted number.

Steps are simulated with the constants of the authors' own simulator (networks.py: mgwfbp) and by the ring's formula.
On top of it, the prediction of measured steps has one number: what a message costs in a job beside the network.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from papers.published import load

PUBLISHED = load(Path(__file__).parent)
SCHEDULES = ("wfbp", "sync_easgd", "mg_wfbp")
STAR = "wfbp on star"
"""In place of TensorFlow with parameter servers, a baseline of Fig. 6 and 7 whose rates the paper does not print."""
LABELS = {
    "wfbp": "WFBP", "sync_easgd": "SyncEASGD", "mg_wfbp": "MG-WFBP", "optimal": "optimal",
    STAR: "WFBP on a parameter server (star), in place of TensorFlow's",
}  # fmt: skip
NETWORK = "mgwfbp"
PAPERS_LINKS = {
    PUBLISHED.tables["cluster"]["link"]: "the rate of the paper's network cards",
    PUBLISHED.tables["cluster"]["attained"]: "what all-reduces attained on them, by the authors' fit",
}
"""Bits per second of its nodes' links, by either reading, and which one it is."""
SIMULATED_NODES: tuple[int, ...] = tuple(PUBLISHED.tables["cluster"]["simulated_nodes"])
FITTED = (("wfbp", 2), ("wfbp", 4))
"""The measured steps that the cost of a message is fitted to."""
HIGHEST_CALL_SECONDS, TRIES, NARROWER = 0.01, 50, 3

Predict = Callable[[int, str, float], float]
"""Seconds of a step by nodes, schedule and the cost of a message in seconds."""
Efficiencies = dict[int, dict[str, float]]
"""By nodes and schedule: the share of the nodes' throughput that is left."""


class PaperModel(NamedTuple):
    """One of the paper's networks.

    trace          in configs/traces; measured says whether it was
    rate_images    images of a step that the published rate counts
    one_node       published rate of one node, images per second; rates: of more, by schedule, for `nodes`
    """

    label: str
    trace: str
    measured: bool
    rate_images: int
    one_node: float
    nodes: tuple[int, ...]
    rates: Mapping[str, Sequence[float]]

    @property
    def alone(self) -> float:
        """Measured seconds of a step on one node."""
        return self.rate_images / self.one_node

    def seconds(self, nodes: int, schedule: str) -> float:
        """Measured, of a step."""
        return self.rate_images / self.rates[schedule][self.nodes.index(nodes)]


def _model(label: str) -> PaperModel:
    known = PUBLISHED.tables[label]
    rates = {name: known[name] for name in SCHEDULES}
    numbers = known["step_images"], known["one_node"], tuple(known["nodes"])
    return PaperModel(label, known["trace"], known["logged"], *numbers, rates)


GOOGLENET, RESNET = _model("GoogLeNet"), _model("ResNet-50")
MODELS = (GOOGLENET, RESNET)


class PaperStep(NamedTuple):
    """A measured step beside its prediction, in seconds."""

    nodes: int
    schedule: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Share by which the prediction is too long."""
        return self.predicted / self.measured - 1

    @property
    def fitted(self) -> bool:
        """Whether the prediction was fitted to it."""
        return (self.schedule, self.nodes) in FITTED


def steps(model: PaperModel, predict: Predict, call_seconds: float) -> list[PaperStep]:
    """All measured steps of a model with their predictions."""
    return [
        PaperStep(nodes, schedule, model.seconds(nodes, schedule), predict(nodes, schedule, call_seconds))
        for schedule in SCHEDULES
        for nodes in model.nodes
    ]


def fit(model: PaperModel, predict: Predict) -> float:
    """Seconds of a message beside the network: the least sum of squared relative errors of FITTED.

    The sum is no smooth function of it, so it is looked for among TRIES values, then around the best of them.
    """

    def off(call_seconds: float) -> float:
        pairs = ((predict(nodes, name, call_seconds), model.seconds(nodes, name)) for name, nodes in FITTED)
        return sum((predicted / measured - 1) ** 2 for predicted, measured in pairs)

    low, high, best = 0.0, HIGHEST_CALL_SECONDS, 0.0
    for _ in range(NARROWER):
        width = (high - low) / TRIES
        best = min((low + width * step for step in range(TRIES + 1)), key=off)
        low, high = max(best - width, 0.0), best + width
    return best


def crossing(efficiencies: Efficiencies) -> tuple[int, int] | None:
    """The numbers of nodes between which one message becomes better than one per layer; None if it never does."""
    nodes = sorted(efficiencies)
    for fewer, more in pairwise(nodes):
        first, second = (efficiencies[n]["wfbp"] - efficiencies[n]["sync_easgd"] for n in (fewer, more))
        if first > 0 >= second:
            return fewer, more
    return None
