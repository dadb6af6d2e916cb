"""Fig. 5 (b) to 8 from runs on a cluster, each beside what the paper's authors measured there.

Fig. 5 (a) and 9 need no run: the simulated report has them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from papers.mg_wfbp import figures, simulated
from papers.mg_wfbp.cluster import Rows, Setting, rows_of
from papers.mg_wfbp.figures import MeasuredBars, Times, times
from papers.mg_wfbp.paper import LABELS, MODELS, SCHEDULES, STAR, PaperModel
from papers.rows import Row, fastest
from wirebench.figures import colours
from wirebench.figures.bars import Bar
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import counted, provenance
from wirebench.figures.style import WIDTH, Figure, Panel, around, finished, grid
from wirebench.record.notes import NotedRun

SHOWN = (*SCHEDULES, STAR)
ByNodes = Mapping[int, Mapping[int, Times]]
FILES = {"GoogLeNet": "cluster_fig6.svg", "ResNet-50": "cluster_fig7.svg"}


def draw(runs: Sequence[NotedRun], alone: ByNodes) -> tuple[dict[str, Figure], list[str]]:
    """The figures by file name, and what is missing for the others, a line each.

    alone  all-reduces that were timed alone, which Fig. 5 (b) prefers to the all-reduces of trainings
    """
    rows = rows_of(runs)
    drawn: dict[str, Figure] = {}
    missing = []
    timed = rings_alone(alone) if alone else all_reduces(rows)
    if timed is None:
        missing.append("cluster_fig5b.svg: no run on several machines has times of rings (`collective.name=ring`)")
    else:
        drawn["cluster_fig5b.svg"] = timed
    panels = []
    for model in MODELS:
        mine = of_most_runs(model, rows)
        if speedups := speedups_of(model, mine):
            drawn[FILES[model.label]] = speedups
        else:
            needs = "needs runs of the network on one machine and on several"
            missing.append(f"{FILES[model.label]}: {model.label} {needs}")
        panels += [parts] if (parts := parts_of(model, mine)) else []
    if panels:
        where = _where([row for row in rows.values() if not row.diverged])
        note = f"Bars: medians of runs; ticks: the whole step as the paper's authors measured it. {where}."
        title = "MG-WFBP, Fig. 8: computation and communication of a step, measured"
        drawn["cluster_fig8.svg"] = grid(panels, title, note, 2, len(panels) * (WIDTH + figures.BESIDE))
    else:
        missing.append("cluster_fig8.svg: no run on several machines has phases of its steps")
    return drawn, missing


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
    note = "Points: medians, bars from the shortest to the longest; all-reduces alone, of float32."
    constants = "From the network constants of the authors' simulator"
    return figures.all_reduces(simulated.all_reduce, constants, [MeasuredBars("on a cluster", note, by_nodes)])


def all_reduces(rows: Rows) -> Figure | None:
    """Fig. 5 (b): rings by size and machines; None without any."""
    by_nodes: defaultdict[int, list[NotedRun]] = defaultdict(list)
    for setting, row in rows.items():
        if setting.nodes > 1 and not row.diverged:
            by_nodes[setting.nodes] += row.runs
    found = times(by_nodes)
    if not found:
        return None
    runs = [run for nodes in found for run in by_nodes[nodes]]
    note = (
        f"Points: medians over {counted([len(runs)], 'run')}, bars from the shortest to the longest; rings of the last "
        f"step of each. {provenance(run.has('environment') or {} for run in runs)}."
    )
    constants = "From the network constants of the authors' simulator"
    return figures.all_reduces(simulated.all_reduce, constants, [MeasuredBars("on a cluster", note, found)])


def speedups_of(model: PaperModel, rows: Mapping[Setting, Row]) -> Figure | None:
    """Fig. 6 and 7: speed-ups over one machine, beside the authors' (dashes); None without one machine and several."""
    alone = _alone(rows)
    lines = []
    for name in SHOWN:
        seconds = _steps(rows, name)
        if alone and seconds:
            ups = [1.0, *(nodes * alone / each for nodes, each in seconds.items())]
            lines.append(Curve(LABELS[name], figures.colour(name), [1, *seconds], ups))
    if not lines:
        return None
    for name in SCHEDULES:
        ups = [1.0, *(nodes * model.alone / model.seconds(nodes, name) for nodes in model.nodes)]
        label = f"{LABELS[name]}, the authors'"
        tone = figures.colour(name)
        lines.append(Curve(label, tone, [1, *model.nodes], ups, dash=(4, 3), shape="cross"))
    places = sorted({float(at) for line in lines for at in line.across})
    linear = Curve("linear", colours.GREY, places, places, dash=(2, 3), points=False)
    across = around(figures.NODES, places, values=places)
    up = around(figures.SPEEDUP, [value for line in (*lines, linear) for value in line.up])
    turns = counted((len(row.runs) for row in rows.values()), "run")
    ranks = next(iter(rows)).ranks
    note = (
        f"Solid: medians of {turns}, {ranks} rank{'s' * (ranks > 1)} a machine; dashed: measured by the paper's "
        f"authors (K80, 10 Gbit/s). {_where(list(rows.values()))}."
    )
    number = FILES[model.label].removesuffix(".svg")[-1]
    title = f"MG-WFBP, Fig. {number}: {model.label}, measured on a cluster"
    return finished(curves([linear, *lines], across, up, title, note, height=300))


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


def _where(rows: Sequence[Row]) -> str:
    return provenance(run.has("environment") or {} for row in rows for run in row.runs)
