#!/usr/bin/env python3
"""The MG-WFBP paper's claims beside the simulator: table.md and fig6-fig9.png. Nothing is measured; half a minute.

python scripts/mgwfbp_report.py               writes results/mg-wfbp
python scripts/mgwfbp_report.py --dir FOLDER

The same code gives the same files.
"""

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from matplotlib.figure import Figure

import schedulers
from suite.planner.compositions import DENSE, sizes_of
from wirebench import collectives, networks, trace
from wirebench import paper_mgwfbp as paper
from wirebench.errors import UserError
from wirebench.files import write_atomically
from wirebench.paper_mgwfbp import LABELS, MODELS, SCHEDULES, Cell, Efficiencies, Model
from wirebench.pricing import Pricer
from wirebench.simulate import Simulator, free
from wirebench.trace import Trace
from wirebench.utils.cli import parser_of
from wirebench.utils.figures import finish, new_figure, save
from wirebench.utils.markdown import table

ROOT = Path(__file__).resolve().parents[1]
SHOWN = (*SCHEDULES, "optimal")
COLOURS = {"wfbp": "#0072b2", "sync_easgd": "#e69f00", "mg_wfbp": "#d55e00", "optimal": "#009e73"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0, or 2 with one line on standard error."""
    try:
        options = _parser().parse_args(arguments)
        call_seconds = paper.fit(paper.GOOGLENET, predictor(paper.GOOGLENET))
        predicted = {model.label: paper.cells(model, predictor(model), call_seconds) for model in MODELS}
        simulated = {model.label: efficiencies(model) for model in MODELS}
        draw(options.dir, predicted, simulated)
        target = options.dir / "table.md"
        try:
            write_atomically(target, document(call_seconds, predicted, simulated))
        except OSError as error:
            raise UserError(f"{target}: cannot be written: {error.strerror}") from error
    except UserError as error:
        print(f"mgwfbp_report.py: {error}", file=sys.stderr)
        return error.exit_code
    print(target)
    return 0


def simulator(model: Trace, nodes: int, call_seconds: float = 0.0) -> Simulator:
    """Dense messages on the network of the authors' simulator, by the ring's formula."""
    topology = networks.cluster(networks.find(paper.NETWORK), nodes)
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
    found = {}
    for nodes in paper.SIMULATED_NODES:
        at = simulator(original, nodes)
        found[nodes] = {name: at.step(schedulers.build(name)).efficiency for name in SHOWN}
    return found


def draw(folder: Path, predicted: dict[str, list[Cell]], simulated: dict[str, Efficiencies]) -> None:
    """The paper's Fig. 6 to 9."""
    for number, model in enumerate(MODELS):
        save(real_figure(model, predicted[model.label]), folder / f"fig{6 + number}.png")
        save(simulated_figure(model, simulated[model.label]), folder / f"fig{8 + number}.png")


def real_figure(model: Model, found: Sequence[Cell]) -> Figure:
    """Fig. 6 and 7: speed-ups over one node, as the authors measured them, and as predicted (dashes)."""
    figure, axes = new_figure(f"{model.label}, measured by the paper's authors", "nodes", "speed-up over one node")
    for name in SCHEDULES:
        mine = [cell for cell in found if cell.schedule == name]
        for line, key in (("o-", "measured"), ("x--", "predicted")):
            points = [(1, 1.0), *((cell.nodes, cell.nodes * model.alone / getattr(cell, key)) for cell in mine)]
            label = LABELS[name] if key == "measured" else f"{LABELS[name]}, predicted"
            axes.plot(*zip(*points, strict=True), line, color=COLOURS[name], markersize=4, label=label)
    axes.plot([1, 8], [1, 8], color="0.6", linestyle=":", label="linear")
    finish(axes, "upper left")
    return figure


def simulated_figure(model: Model, found: Efficiencies) -> Figure:
    """Fig. 8 and 9: speed-ups over one node, simulated."""
    kind = "the authors' log" if model.measured else "a reconstructed trace"
    figure, axes = new_figure(f"{model.label}, simulated from {kind}", "nodes", "speed-up over one node")
    for name in SHOWN:
        points = [(nodes, nodes * each[name]) for nodes, each in found.items()]
        axes.plot(*zip(*points, strict=True), "o-", color=COLOURS[name], markersize=4, label=LABELS[name])
    axes.plot([min(found), max(found)], [min(found), max(found)], color="0.6", linestyle=":", label="linear")
    finish(axes, "upper left")
    return figure


def document(call_seconds: float, predicted: dict[str, list[Cell]], simulated: dict[str, Efficiencies]) -> str:
    """table.md."""
    lines = [
        "# The MG-WFBP paper, simulated",
        "",
        "Made by `python scripts/mgwfbp_report.py`. Nothing here was measured by us: steps are simulated with the",
        "constants of the authors' own simulator (ring, alpha 45.25 us, beta 0.993 ns/B, gamma 2.5 ns/B), and what",
        "they measured stands beside. How a step is simulated: [docs/simulation.md](../../docs/simulation.md).",
        "",
        "![GoogLeNet, measured and predicted](fig6.png) ![ResNet-50, measured and predicted](fig7.png)",
        "![GoogLeNet, simulated](fig8.png) ![ResNet-50, simulated](fig9.png)",
        "",
    ]
    for model in MODELS:
        lines += [f"## {model.label}", "", *_about(model)]
        claims = paper.claims(model, simulated[model.label], predicted[model.label])
        lines += table(("claim", "paper", "here", "verdict"), claims)
        lines += _simulated(simulated[model.label])
        lines += _predicted(model, predicted[model.label], call_seconds)
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


def _simulated(found: Efficiencies) -> list[str]:
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
        for nodes, each in found.items()
    ]
    return ["Simulated speed-ups over one node, and efficiencies:", "", *table(head, rows)]


def _predicted(model: Model, found: Sequence[Cell], call_seconds: float) -> list[str]:
    rows = [
        (
            str(cell.nodes), LABELS[cell.schedule], f"{cell.measured:.3f} s", f"{cell.predicted:.3f} s",
            f"{100 * cell.error:+.2f} %", "yes" if cell.fitted and model is paper.GOOGLENET else "",
        )
        for cell in found
    ]  # fmt: skip
    worst = max(abs(cell.error) for cell in found)
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


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(Path(__file__).stem, __doc__)
    where = ROOT / "results" / "mg-wfbp"
    parser.add_argument("--dir", type=Path, default=where, metavar="FOLDER", help="results (results/mg-wfbp)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
