"""The MG-WFBP paper's Fig. 5 to 9, simulated, each beside the numbers that the paper or its authors' code print."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from papers.mg_wfbp.paper import LABELS, PUBLISHED, SCHEDULES, STAR, Efficiencies, PaperModel, PaperStep
from wirebench.costmodel.formulas import CostLine
from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.curves import Curve, Spread, curves
from wirebench.figures.style import WIDTH, Axis, Figure, Panel, around, finished, grid
from wirebench.record.notes import NotedRun
from wirebench.simulation import trace

SHOWN = (*SCHEDULES, "optimal", STAR)
NODES, SPEEDUP = "nodes", "speed-up over one node, times"
COMPUTATION, EXPOSED = "computation", "communication that is not hidden"
PARTS = {COMPUTATION: colours.PALE, EXPOSED: colours.BLUE}
NODE_COLOURS = {2: colours.BLUE, 4: colours.GREEN, 8: colours.VERMILLION}
SHORT = {STAR: "WFBP on star"}
"""Names beside bars, where there is no room for the whole."""
FLOAT_BYTES = 4
WIDER = 1.25
"""A bar of Fig. 8 is cut at this multiple of the longest bar of the paper's three schedules."""
BESIDE = 170
"""Pixels of the names beside a panel of Fig. 5 (b) and Fig. 8."""


class Times(NamedTuple):
    """Times of all-reduces of one size: the median of their seconds, and the shortest and the longest."""

    middle: float
    between: tuple[float, float]


class MeasuredBars(NamedTuple):
    """All-reduces on one network: where, a note, and their times by nodes and bytes."""

    title: str
    note: str
    by_nodes: Mapping[int, Mapping[int, Times]]


def colour(name: str) -> str:
    """Colour of a schedule; WFBP on a star has the star's."""
    return colours.collective("star")[0] if name == STAR else colours.schedule(name)


def layer_sizes(models: Sequence[PaperModel]) -> Figure:
    """Fig. 5 (a): the parameters of each layer, from the input to the output, and the range that the paper prints."""
    lines = []
    for model, name in zip(models, ("wfbp", "mg_wfbp"), strict=True):
        sizes = [layer.numel for layer in trace.load(trace.find(model.trace)).layers if layer.numel]
        places = list(range(1, len(sizes) + 1))
        lines.append(Curve(model.label, colours.schedule(name), places, sizes, width=0.0))
    last = max(line.across[-1] for line in lines)
    for size in PUBLISHED.tables["layer_sizes"]["range"]:
        ends = [float(size)] * 2
        lines.append(Curve(f"{size:,}, the paper's", colours.GREY, [1, last], ends, dash=(2, 3), points=False))
    across = around("layer, from the input", [1.0, float(last)], zero=False)
    up = around("parameters of a layer", [value for line in lines for value in line.up], log=True, format="~s")
    note = (
        "A layer is one parameter tensor of the trace. Dotted: the paper's range, in which its layers mainly lie "
        "(section V-A)."
    )
    return finished(curves(lines, across, up, "MG-WFBP, Fig. 5 (a): sizes of layers", note, height=260))


def all_reduces(line: Callable[[int], CostLine], where: str, measured: Sequence[MeasuredBars]) -> Figure:
    """Fig. 5 (b): seconds of an all-reduce by its bytes: predicted for the paper's network, and measured on ours.

    line      what an all-reduce costs on a number of the paper's nodes
    measured  of other networks: one panel each
    """
    panels = [_predicted_times(line, where), *map(_measured_times, measured)]
    note = "Predicted: a + bM of Eq. 9. The paper's measured points have no numbers; what it prints is drawn."
    title = "MG-WFBP, Fig. 5 (b): time of an all-reduce"
    return grid(panels, title, note, 2, min(len(panels), 2) * (WIDTH + BESIDE))


def _predicted_times(line: Callable[[int], CostLine], where: str) -> Panel:
    sizes = [float(FLOAT_BYTES * size) for size in PUBLISHED.tables["layer_sizes"]["range"]]
    sizes = [sizes[0] * (sizes[1] / sizes[0]) ** (step / 40) for step in range(41)]
    lines = [
        Curve(f"{nodes} nodes, predicted", tone, sizes, [1e3 * line(nodes).seconds(size) for size in sizes],
              dash=(4, 3), points=False)
        for nodes, tone in NODE_COLOURS.items()
    ]  # fmt: skip
    for claim in PUBLISHED.claims.values():
        if "startup" in claim.about:
            nodes, microseconds = claim.about["startup"], claim.number[0]
            name = f"{nodes} nodes, start-up: the paper's {claim.figure()}"
            lines.append(Curve(name, NODE_COLOURS[nodes], sizes[:1], [microseconds / 1e3], shape="cross", label=""))
    printed = [claim for claim in PUBLISHED.claims.values() if "all_reduce_bytes" in claim.about]
    lines.append(
        Curve("8 nodes, the paper's (section I)", colours.INK, [each.about["all_reduce_bytes"] for each in printed],
              [each.number[0] for each in printed], shape="diamond", width=0.6)
    )  # fmt: skip
    note = f"Crosses: start-up times that the paper prints. {where}."
    return _times(lines, "Predicted for the paper's network", note)


def _measured_times(measured: MeasuredBars) -> Panel:
    lines = []
    for nodes, sizes in sorted(measured.by_nodes.items()):
        tone = NODE_COLOURS.get(nodes, colours.PURPLE)
        numbers = sorted(sizes)
        middles = [1e3 * sizes[size].middle for size in numbers]
        low, high = ([1e3 * sizes[size].between[end] for size in numbers] for end in (0, 1))
        lines.append(Curve(f"{nodes} nodes, measured", tone, numbers, middles, low, high, width=0.0))
        if len(numbers) > 1:
            fit = fitted({size: each.middle for size, each in sizes.items()})
            ends = [numbers[0] * (numbers[-1] / numbers[0]) ** (step / 40) for step in range(41)]
            name = f"{nodes} nodes, fitted: {1e3 * fit.a:.3g} ms + {1e9 * fit.b:.3g} ns/B"
            heights = [1e3 * fit.seconds(size) for size in ends]
            lines.append(Curve(name, tone, ends, heights, dash=(4, 3), points=False))
    return _times(lines, f"Measured {measured.title}, and predicted by a line", measured.note, "bars")


def _times(lines: Sequence[Curve], title: str, note: str, spread: Spread = "band") -> Panel:
    across = around("bytes of the all-reduce", [float(at) for line in lines for at in line.across], log=True,
                    format="~s")  # fmt: skip
    up = around("time, ms", [value for line in lines for value in (*line.up, *line.low, *line.high)], log=True)
    return curves(lines, across, up, title, note, spread, height=260)


def real_figure(model: PaperModel, steps: Sequence[PaperStep], starred: Mapping[int, float], where: str) -> Figure:
    """Fig. 6 and 7: speed-ups over one node, as the authors measured them, and as predicted (dashes).

    starred  predicted seconds of WFBP on a star, by nodes: it stands in for TensorFlow
    """
    lines = [linear((1, *model.nodes))]
    for name in SCHEDULES:
        mine = [step for step in steps if step.schedule == name]
        for dash, key, said in ((1, 0), "measured", ""), ((4, 3), "predicted", ", predicted"):
            speedups = [1.0, *(step.nodes * model.alone / getattr(step, key) for step in mine)]
            nodes = [1, *(step.nodes for step in mine)]
            shape = "circle" if key == "measured" else "cross"
            label = f"{LABELS[name]}{said}"
            lines.append(Curve(label, colour(name), nodes, speedups, dash=dash, shape=shape))
    ups = [1.0, *(nodes * model.alone / seconds for nodes, seconds in starred.items())]
    name = f"{LABELS[STAR]}, predicted"
    lines.append(Curve(name, colour(STAR), [1, *starred], ups, dash=(4, 3), shape="cross"))
    note = (
        "Solid: measured by the MG-WFBP paper's authors (K80, 10 Gbit/s; they print no spread, and not how many "
        "steps). Dashed: simulated by us, with one number, what a message costs beside the network, fitted to two of "
        "GoogLeNet's steps. The paper also measured TensorFlow with parameter servers, and prints no number of it. "
        f"{where}."
    )
    number = {"GoogLeNet": 6, "ResNet-50": 7}[model.label]
    return speedup_figure(lines, f"MG-WFBP, Fig. {number}: {model.label}, measured speed-ups, and predicted", note)


def step_parts(
    models: Sequence[PaperModel],
    predicted: Mapping[str, Sequence[PaperStep]],
    starred: Mapping[str, Mapping[int, float]],
    where: str,
) -> Figure:
    """Fig. 8: computation and communication that is not hidden, stacked, by nodes and schedule; a panel a network.

    predicted, starred  by model: steps, and seconds of a step of WFBP on a star by nodes
    """
    panels = []
    for model in models:
        marks = {(step.nodes, step.schedule): step for step in predicted[model.label]}
        bars = []
        for nodes in model.nodes:
            for name in SCHEDULES:
                step = marks[nodes, name]
                bars.append(step_bar(nodes, LABELS[name], step.predicted, model.alone, step.measured))
            bars.append(step_bar(nodes, SHORT[STAR], starred[model.label][nodes], model.alone, None))
        panels.append(steps_panel(bars, model.label, "the authors measured"))
    note = (
        "Bars: simulated, as in Fig. 6 and 7; ticks: the whole step as the paper's authors measured it, by the rates "
        f"in their code (Fig. 8 has no numbers). '{SHORT[STAR]}': {LABELS[STAR]}. {where}."
    )
    title = "MG-WFBP, Fig. 8: computation and communication of a step"
    return grid(panels, title, note, 2, 2 * (WIDTH + BESIDE))


def step_bar(nodes: int, name: str, seconds: float, alone: float, mark: float | None) -> Bar:
    """A step in two parts: computation is as long as on one node, the rest is communication that nothing hides."""
    words = f"{seconds:.3f}" if mark is None else f"{seconds:.3f}, the authors' {mark:.3f}"
    return Bar(f"{nodes} nodes, {name}", {COMPUTATION: alone, EXPOSED: max(seconds - alone, 0.0)}, None, mark, words)


def steps_panel(bars: Sequence[Bar], title: str, mark: str) -> Panel:
    """Bars of steps; a star's bars may be cut."""
    usual = [bar.end for bar in bars if "star" not in bar.name]
    cut = WIDER * max(usual) if usual else None
    ends = [bar.end if cut is None else min(bar.end, cut) for bar in bars]
    across = around("time of a step, s", [0.0, *ends])
    if cut is not None and max(bar.end for bar in bars) > cut:
        across = replace(across, ends=(0.0, cut))
    look = Look(PARTS, cut=cut, mark=mark, width=WIDTH - 60, legend_columns=1)
    return stacked(bars, across, look, title)


def simulated_figure(model: PaperModel, nodewise: Efficiencies, where: str) -> Figure:
    """Fig. 9: speed-ups over one node, simulated, and the efficiencies that the paper prints of the most nodes."""
    kind = "the authors' log" if model.measured else "a reconstructed trace"
    lines = [linear(list(nodewise))]
    for name in SHOWN:
        speedups = [nodes * each[name] for nodes, each in nodewise.items()]
        lines.append(Curve(LABELS[name], colour(name), list(nodewise), speedups))
    most = max(nodewise)
    stated = [each for each in PUBLISHED.claims.values() if each.about.get("model") == model.label]
    printed = [each for each in stated if "efficiency" in each.about and each.about["efficiency"] != "mg_wfbp"]
    for share in dict.fromkeys(each.number[0] for each in printed):
        those = [LABELS[each.about["efficiency"]] for each in printed if each.number[0] == share]
        name = f"the paper's {' and '.join(those)}: {printed[0].figure()}"
        lines.append(Curve(name, colours.INK, [most], [most * share], shape="diamond"))
    ratios = [
        f"MG-WFBP over {LABELS[claim.about['over']]} {claim.figure()}, here "
        f"{nodewise[most]['mg_wfbp'] / nodewise[most][claim.about['over']]:.2f}x"
        for claim in stated if "over" in claim.about
    ]  # fmt: skip
    note = f"Rings, but for the star; a worker a node. Dotted: linear speed-up. The paper prints of {most} nodes: "
    note += f"{'; '.join(ratios)}. {where}."
    part = {"GoogLeNet": "a", "ResNet-50": "b"}[model.label]
    return speedup_figure(lines, f"MG-WFBP, Fig. 9 ({part}): {model.label}, speed-ups simulated from {kind}", note)


def linear(nodes: Sequence[int]) -> Curve:
    """The dotted line of a linear speed-up."""
    return Curve("linear", colours.GREY, list(nodes), [float(each) for each in nodes], dash=(2, 3), points=False)


def speedup_figure(lines: Sequence[Curve], title: str, note: str) -> Figure:
    """Speed-ups over one node by the number of nodes."""
    nodes = sorted({float(at) for line in lines for at in line.across})
    across: Axis = around(NODES, nodes, values=nodes)
    up = around(SPEEDUP, [value for line in lines for value in line.up])
    return finished(curves(lines, across, up, title, note, height=300))


RING = "ring"


def times(runs: Mapping[int, Sequence[NotedRun]]) -> dict[int, dict[int, Times]]:
    """Times of the rings in the last step of each run, by nodes and bytes; numbers of nodes without any are left out.

    runs  by their number of nodes
    """
    found: dict[int, dict[int, Times]] = {}
    for nodes, those in runs.items():
        seconds: defaultdict[int, list[float]] = defaultdict(list)
        for run in those:
            for request in run.has("requests") or ():
                if request["kind"] == "Sum" and request["plan"] == RING and request["seconds"]:
                    seconds[request["payload_bytes"]].append(request["seconds"])
        if seconds:
            found[nodes] = {
                size: Times(statistics.median(all_of), (min(all_of), max(all_of)))
                for size, all_of in sorted(seconds.items())
            }
    return found


def fitted(seconds: Mapping[int, float]) -> CostLine:
    """The line with the least sum of squared relative errors, no part of it below 0; seconds by bytes, of two sizes."""
    assert len(seconds) > 1, "a line through one point is any"
    weights = {size: 1 / each**2 for size, each in seconds.items()}
    total = sum(weights.values())
    middle_size = sum(weight * size for size, weight in weights.items()) / total
    middle = sum(weight * seconds[size] for size, weight in weights.items()) / total
    across = sum(weight * (size - middle_size) ** 2 for size, weight in weights.items())
    both = sum(weight * (size - middle_size) * (seconds[size] - middle) for size, weight in weights.items())
    slope = max(both / across, 0.0)
    start_up = middle - slope * middle_size
    if start_up >= 0:
        return CostLine(start_up, slope)
    return CostLine(
        0.0, sum(w * s * seconds[s] for s, w in weights.items()) / sum(w * s**2 for s, w in weights.items())
    )
