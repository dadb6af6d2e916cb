"""The MG-WFBP paper's claims beside the simulator: its Fig. 6 to 9 and a table. Nothing is measured."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

import schedulers
from suite.planner.compositions import DENSE, sizes_of
from suite.studies.findings import Finding, claims_table
from suite.studies.mg_wfbp import paper
from suite.studies.mg_wfbp.claims import claims, network_claims
from suite.studies.mg_wfbp.paper import LABELS, MODELS, SCHEDULES, Efficiencies, Model, Step
from suite.studies.page import Page
from wirebench import collectives
from wirebench.costmodel.formulas import Line, ring
from wirebench.costmodel.request_cost import Pricer
from wirebench.simulation import trace
from wirebench.simulation.simulator import Simulator, free
from wirebench.simulation.trace import Trace
from wirebench.topology import presets
from wirebench.utils.figures import finish, new_figure
from wirebench.utils.markdown import table

SHOWN = (*SCHEDULES, "optimal")
COLOURS = {"wfbp": "#0072b2", "sync_easgd": "#e69f00", "mg_wfbp": "#d55e00", "optimal": "#009e73"}


class Results(NamedTuple):
    """What a message costs beside the network, by the fit; measured and predicted steps, and efficiencies, by model."""

    call_seconds: float
    predicted: dict[str, list[Step]]
    simulated: dict[str, Efficiencies]


@functools.cache
def results() -> Results:
    """The same code gives the same."""
    call_seconds = paper.fit(paper.GOOGLENET, predictor(paper.GOOGLENET))
    predicted = {model.label: paper.steps(model, predictor(model), call_seconds) for model in MODELS}
    return Results(call_seconds, predicted, {model.label: efficiencies(model) for model in MODELS})


def findings() -> list[Finding]:
    """The paper's claims beside the simulator."""
    _, predicted, simulated = results()
    found = [(model, claims(model, simulated[model.label], predicted[model.label])) for model in MODELS]
    of_models = [replace(each, about=model.label) for model, those in found for each in those]
    return [*of_models, *network_claims(all_reduce)]


def all_reduce(nodes: int) -> Line:
    """What a ring costs on the network of the authors' simulator."""
    network = presets.find(paper.NETWORK)
    return ring(nodes, network.latency_seconds, 1 / network.bytes_per_second, network.reduce_seconds_per_byte)


def page(folder: Path) -> Page:
    """The report."""
    call_seconds, predicted, simulated = results()
    figures: dict[str, Figure | None] = {}
    for number, model in enumerate(MODELS):
        figures[f"fig{6 + number}.png"] = real_figure(model, predicted[model.label])
        figures[f"fig{8 + number}.png"] = simulated_figure(model, simulated[model.label])
    return Page(folder, document(call_seconds, predicted, simulated), figures)


def simulator(model: Trace, nodes: int, call_seconds: float = 0.0) -> Simulator:
    """Dense messages on the network of the authors' simulator, by the ring's formula."""
    topology = presets.cluster(presets.find(paper.NETWORK), nodes)
    pricer = Pricer(collectives.build("ring"), "ring", topology, call_seconds, formulas=True)
    return Simulator(model, sizes_of(DENSE, None, model, nodes), free, pricer)


def predictor(model: Model) -> paper.Predict:
    """Steps of a model whose trace takes as long as the authors' measured step of one node."""
    original = trace.load(trace.find(model.trace))
    scaled = original.faster((original.forward_seconds + original.backward_seconds) / model.alone)

    @functools.cache
    def predict(nodes: int, schedule: str, call_seconds: float) -> float:
        return simulator(scaled, nodes, call_seconds).step(schedulers.build(schedule)).step.seconds

    return predict


def efficiencies(model: Model) -> Efficiencies:
    """By nodes and schedule, of the trace as it is."""
    original = trace.load(trace.find(model.trace))
    nodewise = {}
    for nodes in paper.SIMULATED_NODES:
        at = simulator(original, nodes)
        nodewise[nodes] = {name: at.step(schedulers.build(name)).efficiency for name in SHOWN}
    return nodewise


def real_figure(model: Model, steps: Sequence[Step]) -> Figure:
    """Fig. 6 and 7: speed-ups over one node, as the authors measured them, and as predicted (dashes)."""
    figure, axes = new_figure(f"{model.label}, measured by the paper's authors", "nodes", "speed-up over one node")
    for name in SCHEDULES:
        mine = [step for step in steps if step.schedule == name]
        for line, key in (("o-", "measured"), ("x--", "predicted")):
            points = [(1, 1.0), *((step.nodes, step.nodes * model.alone / getattr(step, key)) for step in mine)]
            label = LABELS[name] if key == "measured" else f"{LABELS[name]}, predicted"
            axes.plot(*zip(*points, strict=True), line, color=COLOURS[name], markersize=4, label=label)
    axes.plot([1, 8], [1, 8], color="0.6", linestyle=":", label="linear")
    finish(axes, "upper left")
    return figure


def simulated_figure(model: Model, nodewise: Efficiencies) -> Figure:
    """Fig. 8 and 9: speed-ups over one node, simulated."""
    kind = "the authors' log" if model.measured else "a reconstructed trace"
    figure, axes = new_figure(f"{model.label}, simulated from {kind}", "nodes", "speed-up over one node")
    for name in SHOWN:
        points = [(nodes, nodes * each[name]) for nodes, each in nodewise.items()]
        axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[name], markersize=4, label=LABELS[name])
    axes.plot(
        [min(nodewise), max(nodewise)], [min(nodewise), max(nodewise)], color="0.6", linestyle=":", label="linear"
    )
    finish(axes, "upper left")
    return figure


def document(call_seconds: float, predicted: dict[str, list[Step]], simulated: dict[str, Efficiencies]) -> str:
    """table.md."""
    lines = [
        "# The MG-WFBP paper, simulated",
        "",
        "Made by `wirebench study mg_wfbp report`. Nothing here was measured by us: steps are simulated with the",
        "constants of the authors' own simulator (ring, alpha 45.25 us, beta 0.993 ns/B, gamma 2.5 ns/B), and what",
        "they measured stands beside. How a step is simulated: [docs/simulation.md](../../docs/simulation.md).",
        "",
        "![GoogLeNet, measured and predicted](fig6.png) ![ResNet-50, measured and predicted](fig7.png)",
        "![GoogLeNet, simulated](fig8.png) ![ResNet-50, simulated](fig9.png)",
        "",
    ]
    for model in MODELS:
        lines += [f"## {model.label}", "", *_about(model)]
        lines += claims_table(claims(model, simulated[model.label], predicted[model.label]))
        lines += _simulated(simulated[model.label])
        lines += _predicted(model, predicted[model.label], call_seconds)
    lines += ["## The network", "", *claims_table(network_claims(all_reduce))]
    return "\n".join(lines).rstrip() + "\n"


def _about(model: Model) -> list[str]:
    if model.measured:
        return [f"The trace `{model.trace}` is the authors' log; forward times are half of the backward times.", ""]
    source = trace.load(trace.find(model.trace)).source
    return [
        f"The trace `{model.trace}` is reconstructed, as the log was not published ({source}),",
        "so that the efficiency of SyncEASGD comes out as in the paper. What follows from it is no more than that.",
        "",
    ]


def _simulated(nodewise: Efficiencies) -> list[str]:
    head = (
        "nodes",
        *(f"{LABELS[name]}: speed-up" for name in SHOWN),
        "MG-WFBP over WFBP",
        "over SyncEASGD",
        "optimal over MG-WFBP",
    )
    rows = [
        (
            str(nodes),
            *(f"{nodes * each[name]:.1f} ({100 * each[name]:.0f} %)" for name in SHOWN),
            *(f"{each['mg_wfbp'] / each[rival]:.2f}x" for rival in ("wfbp", "sync_easgd")),
            f"{each['optimal'] / each['mg_wfbp']:.2f}x",
        )
        for nodes, each in nodewise.items()
    ]
    return ["Simulated speed-ups over one node, and efficiencies:", "", *table(head, rows)]


def _predicted(model: Model, steps: Sequence[Step], call_seconds: float) -> list[str]:
    rows = [
        (
            str(step.nodes), LABELS[step.schedule], f"{step.measured:.3f} s", f"{step.predicted:.3f} s",
            f"{100 * step.error:+.2f} %", "yes" if step.fitted and model is paper.GOOGLENET else "",
        )
        for step in steps
    ]  # fmt: skip
    worst = max(abs(step.error) for step in steps)
    said = [f"The trace is made as fast as the measured step of one node, {model.alone:.3f} s. Every message costs"]
    if model is paper.GOOGLENET:
        said += [
            f"{1e3 * call_seconds:.2f} ms more than the network's formula says: the one number that is fitted, to the",
            f"two steps that are marked. Largest error: {100 * worst:.2f} %.",
        ]
    else:
        said += [
            f"what GoogLeNet's do. Largest error: {100 * worst:.2f} %. Layer times that nobody measured, and constants",
            "that were fitted to another job, do not bear predictions of steps.",
        ]
    return [*said, "", *table(("nodes", "schedule", "measured", "predicted", "error", "fitted"), rows)]
