"""The MG-WFBP paper's claims beside the simulator: its Fig. 6 to 9 and a table. Nothing is measured."""

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import schedulers
from suite.figures import colours
from suite.figures.curves import Curve, curves
from suite.figures.provenance import computed
from suite.figures.style import Figure, around, finished
from suite.planner.compositions import DENSE, sizes_of
from suite.studies.findings import Finding, claims_table
from suite.studies.mg_wfbp import origin, paper
from suite.studies.mg_wfbp.claims import claims, network_claims
from suite.studies.mg_wfbp.paper import LABELS, MODELS, SCHEDULES, Efficiencies, Model, Step
from suite.studies.page import Page
from wirebench import collectives
from wirebench.costmodel.formulas import Line, ring
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.request_sizes import Sizes
from wirebench.simulation import trace
from wirebench.simulation.simulator import Simulator, free
from wirebench.simulation.trace import Trace
from wirebench.topology import presets
from wirebench.utils.markdown import table

SHOWN = (*SCHEDULES, "optimal")
NODES, SPEEDUP = "nodes", "speed-up over one node, times"


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
    known = origin.of(folder, call_seconds, predicted, simulated)
    figures: dict[str, Figure | None] = {}
    for number, model in enumerate(MODELS):
        where = computed(known.git, _trace(model), "the network constants of the authors' simulator")
        figures[f"fig{6 + number}.png"] = real_figure(model, predicted[model.label], where)
        figures[f"fig{8 + number}.png"] = simulated_figure(model, simulated[model.label], where)
    text = document(call_seconds, predicted, simulated)
    return Page(folder, text, figures, files={origin.FILE: known.text})


def simulator(model: Trace, sizes: Sizes, call_seconds: float = 0.0) -> Simulator:
    """Dense messages on the network of the authors' simulator, by the ring's formula."""
    topology = presets.cluster(presets.find(paper.NETWORK), sizes.size)
    pricer = Pricer(collectives.build("ring"), "ring", topology, call_seconds, formulas=True)
    return Simulator(model, sizes, free, pricer)


def predictor(model: Model) -> paper.Predict:
    """Steps of a model whose trace takes as long as the authors' measured step of one node."""
    original = trace.load(trace.find(model.trace))
    scaled = original.faster((original.forward_seconds + original.backward_seconds) / model.alone)

    @functools.cache
    def sizes(nodes: int) -> Sizes:
        return sizes_of(DENSE, None, scaled, nodes)  # it remembers those of every bucket

    @functools.cache
    def predict(nodes: int, schedule: str, call_seconds: float) -> float:
        return simulator(scaled, sizes(nodes), call_seconds).step(schedulers.build(schedule)).step.seconds

    return predict


def efficiencies(model: Model) -> Efficiencies:
    """By nodes and schedule, of the trace as it is."""
    original = trace.load(trace.find(model.trace))
    nodewise = {}
    for nodes in paper.SIMULATED_NODES:
        at = simulator(original, sizes_of(DENSE, None, original, nodes))
        nodewise[nodes] = {name: at.step(schedulers.build(name)).efficiency for name in SHOWN}
    return nodewise


def real_figure(model: Model, steps: Sequence[Step], where: str) -> Figure:
    """Fig. 6 and 7: speed-ups over one node, as the authors measured them, and as predicted (dashes)."""
    lines = [_linear((1, *model.nodes))]
    for name in SCHEDULES:
        mine = [step for step in steps if step.schedule == name]
        for dash, key, said in ((1, 0), "measured", ""), ((4, 3), "predicted", ", predicted"):
            speedups = [1.0, *(step.nodes * model.alone / getattr(step, key) for step in mine)]
            nodes = [1, *(step.nodes for step in mine)]
            shape = "circle" if key == "measured" else "cross"
            label = f"{LABELS[name]}{said}"
            lines.append(Curve(label, colours.schedule(name), nodes, speedups, dash=dash, shape=shape))
    note = (
        "Solid: measured by the MG-WFBP paper's authors (K80, 10 Gbit/s; they print no spread, and not how many "
        "steps); dashed: simulated by us, with one number, what a message costs beside the network, fitted to two of "
        f"GoogLeNet's steps. {where}."
    )
    return _speedups(lines, f"{model.label}: measured speed-ups, and predicted", note)


def simulated_figure(model: Model, nodewise: Efficiencies, where: str) -> Figure:
    """Fig. 8 and 9: speed-ups over one node, simulated."""
    kind = "the authors' log" if model.measured else "a reconstructed trace"
    lines = [_linear(list(nodewise))]
    for name in SHOWN:
        speedups = [nodes * each[name] for nodes, each in nodewise.items()]
        lines.append(Curve(LABELS[name], colours.schedule(name), list(nodewise), speedups))
    note = f"Rings, a worker a node. Dotted: linear speed-up. {where}."
    return _speedups(lines, f"{model.label}: speed-ups simulated from {kind}", note)


def _trace(model: Model) -> str:
    kind = "the authors' log" if model.measured else "reconstructed"
    return f"the trace {model.trace} ({kind}, {trace.load(trace.find(model.trace)).hardware})"


def _linear(nodes: Sequence[int]) -> Curve:
    return Curve("linear", colours.GREY, list(nodes), [float(each) for each in nodes], dash=(2, 3), points=False)


def _speedups(lines: Sequence[Curve], title: str, note: str) -> Figure:
    nodes = sorted({float(at) for line in lines for at in line.across})
    across = around(NODES, nodes, values=nodes)
    up = around(SPEEDUP, [value for line in lines for value in line.up])
    return finished(curves(lines, across, up, title, note, height=260))


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
