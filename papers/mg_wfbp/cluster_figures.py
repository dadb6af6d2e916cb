"""Fig. 5 (b) to 8 from runs on a cluster, each beside what the paper's authors measured there.

Fig. 5 (a) and 9 need no run: the simulated report has them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from papers.mg_wfbp import figures, simulated
from papers.mg_wfbp.cluster import Rows, Setting, rows_of
from papers.mg_wfbp.figures import MeasuredBars, Times, times
from papers.mg_wfbp.paper import LABELS, MODELS, SCHEDULES, STAR, PaperModel
from papers.page import Drawn
from papers.rows import Row, fastest, provenance_of
from wirebench.figures.bars import Bar
from wirebench.figures.curves import Curve
from wirebench.figures.provenance import counted
from wirebench.figures.style import WIDTH, Figure, Panel, grid
from wirebench.record.notes import NotedRun

SHOWN = (*SCHEDULES, STAR)
ByNodes = Mapping[int, Mapping[int, Times]]
FIG5, FIG8 = "cluster_fig5b.svg", "cluster_fig8.svg"
FILES = {"GoogLeNet": "cluster_fig6.svg", "ResNet-50": "cluster_fig7.svg"}


def draw(runs: Sequence[NotedRun], alone: ByNodes) -> Drawn:
    """The figures that these runs have the data for, and what is missing for the others.

    alone  all-reduces that were timed alone, which Fig. 5 (b) prefers to the all-reduces of trainings
    """
    rows, drawn = rows_of(runs), Drawn()
    of_models = [(model, of_most_runs(model, rows)) for model in MODELS]
    figures_of: dict[str, Figure | str] = {FIG5: rings_alone(alone) if alone else all_reduces(rows)}
    figures_of |= {FILES[model.label]: speedups_of(model, mine) for model, mine in of_models}
    panels = [panel for panel in (parts_of(*each) for each in of_models) if panel]
    figures_of[FIG8] = "no run on several machines has phases of its steps"
    if panels:
        where_made = provenance_of(run for row in rows.values() if not row.diverged for run in row.runs)
        note = f"Bars: medians of runs; ticks: the whole step as the paper's authors measured it. {where_made}."
        title = "MG-WFBP, Fig. 8: computation and communication of a step, measured"
        figures_of[FIG8] = grid(panels, title, note, 2, len(panels) * (WIDTH + figures.BESIDE))
    for name, figure in figures_of.items():
        drawn.add(name, name, figure)
    return drawn


def of_most_runs(model: PaperModel, rows: Rows) -> dict[Setting, Row]:
    """The network's rows with as many ranks a machine, replayed or computing, as most of its runs have."""
    mine = {setting: row for setting, row in rows.items() if setting.model == model.label and not row.diverged}
    counts: defaultdict[tuple[int, str], int] = defaultdict(int)
    for setting, row in mine.items():
        counts[setting.ranks, setting.how] += len(row.runs)
    most = max(counts, key=lambda each: (counts[each], each), default=(0, ""))
    return {setting: row for setting, row in mine.items() if (setting.ranks, setting.how) == most}


def rings_alone(by_nodes: ByNodes) -> Figure:
    """Fig. 5 (b), of rings that `wirebench bench collectives` timed with nothing else on the network."""
    return _measured(by_nodes, "Points: medians, bars from the shortest to the longest; all-reduces alone, of float32.")


def all_reduces(rows: Rows) -> Figure | str:
    """Fig. 5 (b): rings by size and machines; without any, the reason."""
    timed = [(setting.nodes, run) for setting, row in rows.items() for run in row.runs if not row.diverged]
    by_nodes = {nodes: [run for each, run in timed if each == nodes] for nodes, _ in timed if nodes > 1}
    found = times(by_nodes)
    if not found:
        return "no run on several machines has times of rings (`collective.name=ring`)"
    runs = [run for nodes in found for run in by_nodes[nodes]]
    note = (
        f"Points: medians over {counted([len(runs)], 'run')}, bars from the shortest to the longest; rings of the last "
        f"step of each. {provenance_of(runs)}."
    )
    return _measured(found, note)


def _measured(by_nodes: ByNodes, note: str) -> Figure:
    constants = "From the network constants of the authors' simulator"
    return figures.all_reduces(simulated.all_reduce, constants, [MeasuredBars("on a cluster", note, by_nodes)])


def speedups_of(model: PaperModel, rows: Mapping[Setting, Row]) -> Figure | str:
    """Fig. 6 and 7: speed-ups over one machine, beside the authors' (dashes); without both, the reason."""
    alone, lines = _alone(rows), []
    for name in SHOWN:
        seconds = _steps(rows, name)
        if alone and seconds:
            ups = [1.0, *(nodes * alone / each for nodes, each in seconds.items())]
            lines.append(Curve(LABELS[name], figures.colour(name), [1, *seconds], ups))
    if not lines:
        return f"{model.label} needs runs of the network on one machine and on several"
    for name in SCHEDULES:
        ups = [1.0, *(nodes * model.alone / model.seconds(nodes, name) for nodes in model.nodes)]
        label = f"{LABELS[name]}, the authors'"
        lines.append(Curve(label, figures.colour(name), [1, *model.nodes], ups, dash=(4, 3), shape="cross"))
    places = sorted({int(at) for line in lines for at in line.across})
    turns = counted((len(row.runs) for row in rows.values()), "run")
    ranks = next(iter(rows)).ranks
    note = (
        f"Solid: medians of {turns}, {ranks} rank{'s' * (ranks > 1)} a machine; dashed: measured by the paper's "
        f"authors (K80, 10 Gbit/s). {provenance_of(run for row in rows.values() for run in row.runs)}."
    )
    number = FILES[model.label].removesuffix(".svg")[-1]
    title = f"MG-WFBP, Fig. {number}: {model.label}, measured on a cluster"
    return figures.speedup_figure([figures.linear(places), *lines], title, note)


def parts_of(model: PaperModel, rows: Mapping[Setting, Row]) -> Panel | None:
    """Fig. 8: a bar for each number of machines and schedule; None without any."""
    bars: list[Bar] = []
    for setting, row in sorted(rows.items(), key=lambda pair: (pair[0].nodes, _place(pair[0].schedule))):
        exposed, seconds = row.median("phases", "exchange_exposed"), row.step_seconds
        if setting.nodes > 1 and setting.schedule in SHOWN and exposed is not None and seconds:
            known = setting.nodes in model.nodes and setting.schedule in SCHEDULES
            mark = model.seconds(setting.nodes, setting.schedule) if known else None
            name = figures.SHORT.get(setting.schedule, LABELS[setting.schedule])
            bars.append(figures.step_bar(setting.nodes, name, seconds, max(seconds - exposed, 0.0), mark))
    return figures.steps_panel(bars, model.label, "the authors measured") if bars else None


def _place(schedule: str) -> int:
    return SHOWN.index(schedule) if schedule in SHOWN else len(SHOWN)


def _alone(rows: Mapping[Setting, Row]) -> float | None:
    """Seconds of a step on one machine, by its fastest schedule."""
    single = [row for setting, row in rows.items() if setting.nodes == 1]
    row = fastest(single, [each.label for each in single])
    return row.step_seconds if row else None


def _steps(rows: Mapping[Setting, Row], schedule: str) -> dict[int, float]:
    """Seconds of a step by machines, of several."""
    found = {setting.nodes: row.step_seconds for setting, row in rows.items() if setting.schedule == schedule}
    return {nodes: seconds for nodes, seconds in sorted(found.items()) if nodes > 1 and seconds}
