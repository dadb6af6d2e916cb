"""The MG-WFBP paper beside the simulator: its measured steps, its simulated claims, and a fit of one number.

Shi and Chu, "MG-WFBP: Efficient Data Communication for Distributed Synchronous SGD Algorithms", INFOCOM 2019 (arXiv
1811.11141). The measured throughputs behind its Fig. 6 and 7 are those of scripts/gmwfbp.py in its authors' B-Caffe;
what it calls SyncEASGD is one message after the backward pass. Nodes are K80s, two GPUs each, on 10 Gbit/s Ethernet.

Steps are simulated with the constants of the authors' own simulator (networks.py: mgwfbp) and by the ring's formula.
On top of it, the prediction of measured steps has one number: what a message costs in a job beside the network.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

SCHEDULES = ("wfbp", "sync_easgd", "mg_wfbp")
LABELS = {"wfbp": "WFBP", "sync_easgd": "SyncEASGD", "mg_wfbp": "MG-WFBP", "optimal": "optimal"}
NETWORK = "mgwfbp"
REAL_NODES = (2, 4, 8)
SIMULATED_NODES = (4, 8, 16, 32, 64)
FITTED = (("wfbp", 2), ("wfbp", 4))
"""The measured steps that the cost of a message is fitted to."""
MOST_OFF = 0.08
"""By how much a predicted step may differ from the measured one."""
REACHED = 0.05
"""A ratio that differs from the paper's by no more than this share is reproduced."""
HIGHEST_CALL_SECONDS, TRIES, NARROWER = 0.01, 50, 3

Predict = Callable[[int, str, float], float]
"""Seconds of a step by nodes, schedule and the cost of a message in seconds."""
Efficiencies = dict[int, dict[str, float]]
"""By nodes and schedule: the share of the nodes' throughput that is left."""


class Model(NamedTuple):
    """One of the paper's networks.

    trace          in configs/traces; measured says whether it was
    rate_images    images of a step that the published rate counts
    one_node       published rate of one node, images per second; rates: of more, by schedule, for REAL_NODES
    claims         simulated speed of MG-WFBP on 64 nodes over WFBP and SyncEASGD
    """

    label: str
    trace: str
    measured: bool
    rate_images: int
    one_node: float
    rates: dict[str, tuple[float, float, float]]
    claims: dict[str, float]

    @property
    def alone(self) -> float:
        """Measured seconds of a step on one node."""
        return self.rate_images / self.one_node

    def seconds(self, nodes: int, schedule: str) -> float:
        """Measured, of a step."""
        return self.rate_images / self.rates[schedule][REAL_NODES.index(nodes)]


GOOGLENET = Model(
    "GoogLeNet", "googlenet_k80", True, 32, 81.68,  # the rates are per GPU, of which a node has two
    {"wfbp": (74.83, 74.91, 62.90), "sync_easgd": (62.57, 57.67, 55.58), "mg_wfbp": (79.02, 75.03, 75.68)},
    {"wfbp": 1.78, "sync_easgd": 1.35},
)  # fmt: skip
RESNET = Model(
    "ResNet-50", "resnet50_k80", False, 32, 76.85,
    {"wfbp": (75.55, 73.68, 58.20), "sync_easgd": (60.0, 55.7, 50.8), "mg_wfbp": (75.59, 73.80, 70.83)},
    {"wfbp": 1.75, "sync_easgd": 1.45},
)  # fmt: skip
MODELS = (GOOGLENET, RESNET)


class Cell(NamedTuple):
    """A measured step beside its prediction, in seconds."""

    nodes: int
    schedule: str
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """By what share the prediction is too long."""
        return self.predicted / self.measured - 1

    @property
    def fitted(self) -> bool:
        """Whether the prediction was fitted to it."""
        return (self.schedule, self.nodes) in FITTED


class Claim(NamedTuple):
    """What the paper says, its figure, ours, and what to think of it."""

    text: str
    paper: str
    ours: str
    verdict: str


def cells(model: Model, predict: Predict, call_seconds: float) -> list[Cell]:
    """All measured steps of a model with their predictions."""
    return [
        Cell(nodes, schedule, model.seconds(nodes, schedule), predict(nodes, schedule, call_seconds))
        for schedule in SCHEDULES
        for nodes in REAL_NODES
    ]


def fit(model: Model, predict: Predict) -> float:
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


def claims(model: Model, simulated: Efficiencies, predicted: Sequence[Cell]) -> list[Claim]:
    """The paper's claims about a model, each with a verdict."""
    most = max(simulated)
    at_most = simulated[most]
    found = []
    for rival, figure in model.claims.items():
        ratio = at_most["mg_wfbp"] / at_most[rival]
        text = f"simulated, {most} nodes: MG-WFBP over {LABELS[rival]}"
        found.append(Claim(text, f"{figure:.2f}x", f"{ratio:.2f}x", _verdict(ratio, figure, model)))
    between = crossing(simulated)
    ours = "nowhere" if between is None else f"between {between[0]} and {between[1]}"
    holds = between is not None and between[0] >= 16
    text = "simulated: WFBP faster on 4 to 16 nodes, SyncEASGD on 64"
    found.append(Claim(text, "between 16 and 64", ours, "reproduced" if holds else "not reproduced"))
    if model is RESNET:
        found += [
            Claim(
                f"simulated, {most} nodes: efficiency of {LABELS[name]}",
                figure,
                f"{100 * at_most[name]:.1f} %",
                _verdict(at_most[name], least, model),
            )
            for name, figure, least in (
                ("wfbp", "around 55 %", 0.55), ("sync_easgd", "around 55 %", 0.55), ("mg_wfbp", "almost linear", 1.0),
            )
        ]  # fmt: skip
    return [*found, *(_measured_claim(model, predicted, rival) for rival in ("wfbp", "sync_easgd"))]


def _measured_claim(model: Model, predicted: Sequence[Cell], rival: str) -> Claim:
    """What was measured on 8 nodes, and what is predicted of it."""
    at = {cell.schedule: cell for cell in predicted if cell.nodes == REAL_NODES[-1]}
    measured, ours = (getattr(at[rival], name) / getattr(at["mg_wfbp"], name) for name in ("measured", "predicted"))
    text = f"measured, {REAL_NODES[-1]} nodes: MG-WFBP over {LABELS[rival]}; here: predicted"
    return Claim(text, f"{measured:.2f}x", f"{ours:.2f}x", f"off by {100 * (ours / measured - 1):+.0f} %")


def _verdict(ours: float, paper: float, model: Model) -> str:
    if abs(ours / paper - 1) > REACHED:
        return f"not reproduced: {100 * (ours / paper - 1):+.0f} %"
    return "reproduced" if model.measured else "reproduced, from a reconstructed trace"
