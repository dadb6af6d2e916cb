"""The MG-WFBP paper's claims beside the simulator: its Fig. 5 to 9, a table, and which commit gave these numbers."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from papers.findings import Finding, claims_table
from papers.mg_wfbp import figures, paper
from papers.mg_wfbp.claims import claims, network_claims
from papers.mg_wfbp.figures import SHOWN, MeasuredBars, times
from papers.mg_wfbp.paper import GOOGLENET, LABELS, MODELS, RESNET, SCHEDULES, STAR, Efficiencies, PaperModel, PaperStep
from papers.page import Page
from papers.rows import load, provenance_of
from papers.runner import RESULTS
from wirebench import collectives, schedulers
from wirebench.costmodel.formulas import CostLine, ring
from wirebench.costmodel.request_cost import Pricer
from wirebench.costmodel.request_sizes import Sizes
from wirebench.errors import UserError
from wirebench.figures.provenance import computed, counted
from wirebench.figures.style import Figure
from wirebench.planner.compositions import DENSE, sizes_of
from wirebench.simulation import trace
from wirebench.simulation.simulator import Simulator, free
from wirebench.simulation.trace import Trace
from wirebench.telemetry import environment
from wirebench.topology import presets
from wirebench.topology.rates import parse_rate
from wirebench.utils.markdown import table
from wirebench.utils.parsing import json_of

RING = "ring"
EMULATED = RESULTS / "schedules/googlenet_8x10gbit"
"""Runs on emulated hosts whose all-reduces stand beside Fig. 5 (b): of the paper's three schedules."""
CAPTIONS = {
    "fig5a.svg": "sizes of layers", "fig5b.svg": "time of an all-reduce",
    "fig6.svg": "GoogLeNet, measured and predicted", "fig7.svg": "ResNet-50, measured and predicted",
    "fig8.svg": "computation and communication", "fig9a.svg": "GoogLeNet, simulated",
    "fig9b.svg": "ResNet-50, simulated",
}  # fmt: skip


class SimulatedResults(NamedTuple):
    """What a message costs beside the network, by the fit; measured and predicted steps, and efficiencies, by model.

    starred  predicted seconds of a step of WFBP on a star, by model and nodes
    """

    call_seconds: float
    predicted: dict[str, list[PaperStep]]
    starred: dict[str, dict[int, float]]
    simulated: dict[str, Efficiencies]


@functools.cache
def results() -> SimulatedResults:
    """Return the simulated results, which depend on the code alone."""
    predict = {model.label: predictor(model) for model in MODELS}
    call_seconds = paper.fit(GOOGLENET, predict[GOOGLENET.label])
    predicted = {model.label: paper.steps(model, predict[model.label], call_seconds) for model in MODELS}
    starred = {
        model.label: {nodes: predict[model.label](nodes, STAR, call_seconds) for nodes in model.nodes}
        for model in MODELS
    }
    return SimulatedResults(call_seconds, predicted, starred, {model.label: efficiencies(model) for model in MODELS})


def findings() -> list[Finding]:
    """The paper's claims beside the simulator."""
    _, predicted, _, simulated = results()
    found = [(model, claims(model, simulated[model.label], predicted[model.label])) for model in MODELS]
    of_models = [replace(each, about=model.label) for model, those in found for each in those]
    return [*of_models, *network_claims(all_reduce)]


def all_reduce(nodes: int) -> CostLine:
    """What a ring costs on the network of the authors' simulator."""
    network = presets.find(paper.NETWORK)
    return ring(nodes, network.latency_seconds, 1 / network.bytes_per_second, network.reduce_seconds_per_byte)


def page(folder: Path) -> Page:
    """The report."""
    found = results()
    known = known_since(folder, found)
    constants = "the network constants of the authors' simulator"
    where = {model.label: computed(known.git, _trace(model), constants) for model in MODELS}
    both = computed(known.git, *map(_trace, MODELS), constants)
    drawn: dict[str, Figure | None] = {
        "fig5a.svg": figures.layer_sizes(MODELS),
        "fig5b.svg": figures.all_reduces(all_reduce, computed(known.git, constants), _measured()),
        "fig8.svg": figures.step_parts(MODELS, found.predicted, found.starred, both),
    }
    for model, real, simulated in ((GOOGLENET, "fig6", "fig9a"), (RESNET, "fig7", "fig9b")):
        label = model.label
        drawn[f"{real}.svg"] = figures.real_figure(model, found.predicted[label], found.starred[label], where[label])
        drawn[f"{simulated}.svg"] = figures.simulated_figure(model, found.simulated[label], where[label])
    in_order = {name: drawn[name] for name in CAPTIONS}
    return Page(folder, document(found), in_order, files={FILE: known.text})


def _measured() -> list[MeasuredBars]:
    """The all-reduces of the emulated hosts; none where these runs are not there."""
    if not EMULATED.is_dir():
        return []
    rows = [row for row in load(EMULATED) if row.label in SCHEDULES and not row.diverged]
    runs = [run for row in rows for run in row.runs]
    by_nodes = times({run.note["hosts"]: runs for run in runs[:1]})
    turns = counted((len(row.runs) for row in rows), "turn")
    note = (
        f"Points: medians over {turns} of {len(rows)} schedules, bars from the shortest to the longest; rings of the "
        f"last step of each. {provenance_of(runs)}."
    )
    title = f"on emulated hosts with links of {parse_rate(runs[0].note['link']) / 1e9:g} Gbit/s" if runs else ""
    return [MeasuredBars(title, note, by_nodes)] if by_nodes else []


def simulator(model: Trace, sizes: Sizes, call_seconds: float = 0.0, collective: str = RING) -> Simulator:
    """Dense messages on the network of the authors' simulator, by the collective's formula."""
    topology = presets.cluster(presets.find(paper.NETWORK), sizes.size)
    pricer = Pricer(collectives.build(collective), topology, call_seconds, formulas=True)
    return Simulator(model, sizes, free, pricer)


def predictor(model: PaperModel) -> paper.Predict:
    """Steps of a model whose trace takes as long as the authors' measured step of one node."""
    original = trace.load(trace.find(model.trace))
    scaled = original.faster((original.forward_seconds + original.backward_seconds) / model.alone)

    @functools.cache
    def sizes(nodes: int) -> Sizes:
        return sizes_of(DENSE, None, scaled, nodes)  # it remembers those of every bucket

    @functools.cache
    def predict(nodes: int, schedule: str, call_seconds: float) -> float:
        name, _, collective = schedule.partition(" on ")
        at = simulator(scaled, sizes(nodes), call_seconds, collective or RING)
        return at.step(schedulers.build(name)).step.seconds

    return predict


def efficiencies(model: PaperModel) -> Efficiencies:
    """By nodes and schedule, of the unchanged trace."""
    original = trace.load(trace.find(model.trace))
    nodewise = {}
    for nodes in paper.SIMULATED_NODES:
        sizes = sizes_of(DENSE, None, original, nodes)
        at = {collective: simulator(original, sizes, collective=collective) for collective in (RING, "star")}
        pairs = {name: name.partition(" on ") for name in SHOWN}
        nodewise[nodes] = {
            label: at[collective or RING].step(schedulers.build(name)).efficiency
            for label, (name, _, collective) in pairs.items()
        }
    return nodewise


def _trace(model: PaperModel) -> str:
    kind = "the authors' log" if model.measured else "reconstructed"
    return f"the trace {model.trace} ({kind}, {trace.load(trace.find(model.trace)).hardware})"


def document(found: SimulatedResults) -> str:
    """table.md."""
    call_seconds, predicted, starred, simulated = found
    lines = [
        "# The MG-WFBP paper, simulated",
        "",
        "Made by `wirebench study mg_wfbp report`. Nothing here was measured by us: steps are simulated with the",
        "constants of the authors' own simulator (ring, alpha 45.25 us, beta 0.993 ns/B, gamma 2.5 ns/B), and what",
        "they measured stands beside. How a step is simulated: [docs/simulation.md](../../docs/simulation.md).",
        "",
        "TensorFlow with parameter servers, a measured baseline of Fig. 6 and 7, was not run, and the paper prints no",
        "number of it. WFBP on a star, which has one server, is simulated in its place. The paper does not state",
        "TensorFlow's number of servers.",
        "",
        *(f"![{caption}]({name})" for name, caption in CAPTIONS.items()),
        "",
    ]
    for model in MODELS:
        lines += [f"## {model.label}", "", *_about(model)]
        lines += claims_table(claims(model, simulated[model.label], predicted[model.label]))
        lines += _simulated(simulated[model.label])
        lines += _predicted(model, predicted[model.label], starred[model.label], call_seconds)
    lines += ["## The network", "", *claims_table(network_claims(all_reduce))]
    return "\n".join(lines).rstrip() + "\n"


def _about(model: PaperModel) -> list[str]:
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


def _predicted(
    model: PaperModel, steps: Sequence[PaperStep], starred: Mapping[int, float], call_seconds: float
) -> list[str]:
    rows = [
        (
            str(step.nodes), LABELS[step.schedule], f"{step.measured:.3f} s", f"{step.predicted:.3f} s",
            f"{100 * step.error:+.2f} %", "yes" if step.fitted and model is paper.GOOGLENET else "",
        )
        for step in steps
    ]  # fmt: skip
    rows += [(str(nodes), LABELS[STAR], "-", f"{seconds:.3f} s", "-", "") for nodes, seconds in starred.items()]
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


FILE = "simulated.json"
GIT = "git"
DIGITS = 6
"""Digits kept of each number, so that another processor's rounding does not change the result."""


class Origin(NamedTuple):
    """The commit as an environment has it (None outside a checkout), and the text of the file."""

    git: dict[str, Any] | None
    text: str


def known_since(folder: Path, found: SimulatedResults) -> Origin:
    """Origin of these numbers. The commit comes from the folder's file if that has the same numbers, else from this
    checkout.
    """
    steps = {
        label: [[step.nodes, step.schedule, step.predicted] for step in those]
        for label, those in found.predicted.items()
    }
    told = {"call_seconds": found.call_seconds, "steps": steps, "star": found.starred, "efficiencies": found.simulated}
    numbers = _kept(told)
    before = _read(folder / FILE)
    known = {key: value for key, value in before.items() if key != GIT}
    git = before[GIT] if known == numbers else environment.git()
    return Origin(git, json.dumps({GIT: git, **numbers}, indent=1) + "\n")


def _kept(value: Any) -> Any:
    """What the file has of nested numbers: keys are texts there, and floats have DIGITS."""
    if isinstance(value, dict):
        return {str(key): _kept(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_kept(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _read(path: Path) -> dict[str, Any]:
    """{} where there is no file; UserError where it is not one of these."""
    if not path.is_file():
        return {}
    try:
        content = json_of(path.read_text(encoding="utf-8"))
        return {GIT: content[GIT], **content}
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: is not what `wirebench study mg_wfbp report` writes: {error!r}") from error
