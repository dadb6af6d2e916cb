"""The paper's Fig. 4 (a) to (f) from what was measured."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure

from suite.bench.plot_collectives import style
from suite.studies.flexreduce import measured
from suite.studies.flexreduce.measured import COLLECTIVES, LAYOUTS, PUBLISHED, Latencies, Training
from suite.studies.flexreduce.table import LABELS, Results
from wirebench.utils.figures import finish, new_figure

LINES_AT: Mapping[str, str] = PUBLISHED.tables["layouts"]["lines"]


class Unmeasured(Exception):
    """What a figure shows was not measured; the message says what."""


def draw(results: Results) -> tuple[dict[str, Figure], dict[str, str], dict[str, str]]:
    """The figures, their captions, and the reasons for those that cannot be made, by file name."""
    rows, items = results.rows, measured.main_items(results.rows)
    makers: dict[str, tuple[str, Callable[[], Figure]]] = {
        "fig4a": (f"Latency of {measured.SMALL_ITEMS:,} floats", lambda: over_learners(rows, measured.SMALL_ITEMS)),
        "fig4b": (f"Latency of {items:,} floats", lambda: over_learners_largest(rows)),
        "fig4c": ("Reduce calls per learner", calls_figure),
        "fig4d": (f"Latency on {LINES_AT['fig4d']}", lambda: over_items(rows, LINES_AT["fig4d"])),
        "fig4e": (f"Latency on {LINES_AT['fig4e']}", lambda: over_items(rows, LINES_AT["fig4e"])),
        "fig4f": ("Time per epoch", lambda: epochs_figure(results.runs)),
    }
    figures, captions, left_out = {}, {}, {}
    for name, (caption, make) in makers.items():
        try:
            figures[f"{name}.png"], captions[f"{name}.png"] = make(), caption
        except Unmeasured as reason:
            left_out[f"{name}.png"] = str(reason)
    return figures, captions, left_out


def over_learners(rows: Sequence[Latencies], items: int) -> Figure:
    """Fig. 4 (a), (b): milliseconds over learners, one line per collective, bars from the 10th to 90th percentile.

    Lines break between 2 and 3 machines.
    """
    chosen = [row for row in rows if row.items == items]
    if not chosen:
        raise Unmeasured(f"no all-reduce of {items:,} floats was measured")
    figure, axes = new_figure(f"all-reduce of {items:,} floats", "learners", "ms")
    for name in COLLECTIVES:
        colour, marker = style(name)
        for part, group in enumerate(_by_machines([row for row in chosen if name in row.cells])):
            middles = [1e3 * row.cells[name].median for row in group]
            ends = [[1e3 * end for end in row.cells[name].spread] for row in group]
            below = [middle - low for middle, (low, _) in zip(middles, ends, strict=True)]
            above = [high - middle for middle, (_, high) in zip(middles, ends, strict=True)]
            label = LABELS[name] if part == 0 else None
            sizes = [row.topology.size for row in group]
            axes.errorbar(
                sizes, middles, yerr=(below, above), color=colour, marker=marker, markersize=4, capsize=2, label=label
            )
    for part, group in enumerate(_by_machines([row for row in chosen if "ring" in row.cells])):
        ideals = [1e3 * row.cells["ring"].median * (1 - row.ideal) for row in group]
        label = "ideal: ring less the ideal saving" if part == 0 else None
        sizes = [row.topology.size for row in group]
        axes.plot(sizes, ideals, color="black", linestyle="--", linewidth=1, marker="_", label=label)
    axes.set_xticks([row.topology.size for row in chosen], [f"{row.topology.size}\n{row.layout}" for row in chosen])
    axes.set_ylim(bottom=0)
    finish(axes)
    return figure


def over_learners_largest(rows: Sequence[Latencies]) -> Figure:
    """Fig. 4 (b): at the largest size that the layouts share."""
    items = measured.main_items(rows)
    if items <= measured.SMALL_ITEMS:
        raise Unmeasured(f"no all-reduce of more than {measured.SMALL_ITEMS:,} floats was measured")
    return over_learners(rows, items)


def _by_machines(rows: Sequence[Latencies]) -> list[list[Latencies]]:
    """Rows of 2 machines, then of 3; groups without rows are left out."""
    groups = [[row for row in rows if len(row.topology.machines) == machines] for machines in (2, 3)]
    return [group for group in groups if group]


def calls_figure() -> Figure:
    """Fig. 4 (c): reduce calls into a learner, from the plans."""
    counts = {layout: measured.count_calls(layout) for layout in LAYOUTS}
    figure, axes = new_figure("FlexReduce's reduce calls", "learners", "calls per learner")
    places = range(len(counts))
    axes.bar(
        places, [c.mean for c in counts.values()], color=style("flexreduce")[0], width=0.6, label="mean over levels"
    )
    axes.plot(places, [c.most for c in counts.values()], "kD", markersize=5, label="most of one learner")
    axes.plot(places, [c.bound for c in counts.values()], "k_", markersize=16, label="upper bound (Eq. 12)")
    axes.set_xticks(places, [f"{sum(map(int, layout.split('+')))}\n{layout}" for layout in counts])
    axes.set_ylim(0, 5)
    finish(axes, "upper left")
    return figure


def over_items(rows: Sequence[Latencies], layout: str) -> Figure:
    """Fig. 4 (d), (e): milliseconds over items on one layout, both logarithmic."""
    chosen = [row for row in rows if row.layout == layout]
    if not chosen:
        raise Unmeasured(f"no all-reduce on {layout} was measured")
    learners = chosen[0].topology.size
    figure, axes = new_figure(f"all-reduce on {layout}, {learners} learners", "floats", "ms")
    for name in COLLECTIVES:
        colour, marker = style(name)
        line = [(row.items, 1e3 * row.cells[name].median) for row in chosen if name in row.cells]
        if line:
            axes.plot(*zip(*line, strict=True), color=colour, marker=marker, markersize=4, label=LABELS[name])
    ideal = [(row.items, 1e3 * row.cells["ring"].median * (1 - row.ideal)) for row in chosen if "ring" in row.cells]
    if ideal:
        axes.plot(*zip(*ideal, strict=True), color="black", linestyle="--", linewidth=1, label="ideal")
    axes.set_xscale("log")
    axes.set_yscale("log")
    finish(axes)
    return figure


def epochs_figure(runs: Sequence[Training]) -> Figure:
    """Fig. 4 (f): minutes per epoch by layout, a dot for every turn."""
    layouts = [layout for layout in LAYOUTS if any(run.layout == layout for run in runs)]
    if not layouts:
        raise Unmeasured("no training was measured")
    figure, axes = new_figure(f"ResNet-18, {measured.EPOCH_IMAGES:,} images", "learners", "minutes per epoch")
    width = 0.8 / len(COLLECTIVES)
    for number, name in enumerate(COLLECTIVES):
        times: dict[float, list[float]] = {}
        for place, layout in enumerate(layouts):
            here = [run.epoch_seconds / 60 for run in runs if (run.layout, run.collective) == (layout, name)]
            if here:
                times[place + (number - (len(COLLECTIVES) - 1) / 2) * width] = here
        middles = [statistics.median(minutes) for minutes in times.values()]
        axes.bar(list(times), middles, width=0.9 * width, color=style(name)[0], label=LABELS[name])
        dots = [(x, minute) for x, minutes in times.items() for minute in minutes]
        axes.plot([x for x, _ in dots], [minute for _, minute in dots], "k.", markersize=4)
    axes.set_xticks(range(len(layouts)), [f"{sum(map(int, lay.split('+')))}\n{lay}" for lay in layouts])
    axes.set_xlim(-0.6, max(len(layouts), 2) - 0.4)
    axes.set_ylim(top=1.15 * max(run.epoch_seconds / 60 for run in runs))
    finish(axes, "upper left", len(COLLECTIVES))
    return figure
