"""The IWP paper's Fig. 2 to 8 from trainings; ratios of every variant, and what a slow link carries."""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from papers.accuracy import figures as course
from papers.accuracy.figures import LOSS, TOP1, CurveMeasure
from papers.accuracy.rows import MethodRuns
from papers.estimate import Ends, mean
from papers.iwp import steps
from papers.iwp.claims import ABOVE, BASELINE, CLAIMED, Trained
from papers.iwp.measured import CountedValues
from papers.iwp.network import rate
from papers.iwp.variants import DENSE, DGC, FIXED, LAYERWISE, TERNGRAD, kind, unlabelled
from papers.page import Drawn
from papers.rows import Row, provenance_of
from wirebench.compressors.sparse.importance import LOWS
from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.curves import Curve, curves
from wirebench.figures.provenance import counted
from wirebench.figures.style import WIDTH, Axis, Figure, Panel, around, finished, grid
from wirebench.record.notes import NotedRun
from wirebench.topology.rates import parse_rate

TONES = {
    DENSE: colours.INK, BASELINE: colours.INK, FIXED: colours.BLUE, LAYERWISE: colours.VERMILLION,
    TERNGRAD: colours.GREEN, DGC: colours.PINK, "iwp": colours.BLUE,
}  # fmt: skip
MODELS = {"resnet50": "ResNet-50", "alexnet": "AlexNet"}
"""The one of Fig. 2 to 8 first."""
MOST_LAYERS = 4
"""Most layers whose histograms are shown."""
BROAD = 2 * (course.WIDTH + 170)


class Group(NamedTuple):
    """Methods of one setting, and what they are called together."""

    title: str
    methods: Sequence[MethodRuns]


def of_trainings(trainings: Mapping[str, Sequence[MethodRuns]], network: Sequence[Row] = ()) -> Drawn:
    """Fig. 5 and 6 of the study accuracy, whose tasks stand in for ImageNet: dense and all of IWP's rows.

    trainings  methods by their task
    network    rows of the part network: Fig. 7 and 8, where these runs kept their steps.jsonl
    """
    drawn, groups = Drawn(), []
    for task, methods in trainings.items():
        shown = [method for method in methods if method.label == DENSE or kind(method.label) == "iwp"]
        if any(kind(method.label) == "iwp" for method in shown):
            groups.append(Group(task, shown))
    reason = "no training with iwp"
    stands_in = "CIFAR-10 and its networks stand in for ResNet-50 on ImageNet."
    for name, measure, caption in (("fig5.svg", TOP1, "accuracy"), ("fig6.svg", LOSS, "training loss")):
        drawn.add(name, f"IWP's {caption} by epochs", _courses(name, groups, measure, stands_in) or reason)
    needs = "`wirebench study iwp report --cluster FOLDER` draws it of trainings on ImageNet that kept steps.jsonl"
    emulated = {
        (str(row.runs[0].record["config"]["model"]["name"]), unlabelled(row.label)): row.runs for row in network
    }
    io = io_over_time(emulated)
    for name, caption in _FROM_STEPS.items():
        drawn.add(name, caption, needs if isinstance(io, str) or name != "fig7_8.svg" else io)
    return drawn


_FROM_STEPS = {
    "fig2_3.svg": "Fig. 2 and 3, distributions of importance",
    "fig4.svg": "Fig. 4, variance over mean of the importance by epochs",
    "fig7_8.svg": "Fig. 7 and 8, network I/O over time",
}


def of_imagenet(trained: Trained, prefix: str = "imagenet_") -> Drawn:
    """Fig. 2 to 8 of trainings on ImageNet, and what is missing for those that they have no data for."""
    drawn = Drawn()
    groups = [
        Group(title, [MethodRuns(method, tuple(runs)) for (name, method), runs in trained.items() if name == model])
        for model, title in MODELS.items()
    ]
    groups = [group for group in groups if group.methods]
    drawn.add(f"{prefix}fig2_3.svg", _FROM_STEPS["fig2_3.svg"], distributions(trained))
    drawn.add(f"{prefix}fig4.svg", _FROM_STEPS["fig4.svg"], ratios_by_epoch(trained))
    for name, measure, caption in (("fig5.svg", TOP1, "accuracy"), ("fig6.svg", LOSS, "training loss")):
        figure = _courses(name, groups, measure, "", _papers_top1 if measure is TOP1 else None)
        drawn.add(f"{prefix}{name}", f"IWP's {caption} by epochs", figure or "no run tells it of an epoch")
    drawn.add(f"{prefix}fig7_8.svg", _FROM_STEPS["fig7_8.svg"], io_over_time(trained))
    return drawn


def _courses(
    name: str, groups: Sequence[Group], measure: CurveMeasure, said: str,
    beside: Callable[[Group], Sequence[Curve]] | None = None,
) -> Figure | None:  # fmt: skip
    """A panel for each group; None where none has the measure."""
    panels, notes = [], [said] if said else []
    for group in groups:
        made = course.panel(group.methods, measure, group.title, beside(group) if beside else (), _tones(group))
        if made is not None:
            panels.append(made)
            notes.append(f"{group.title}: {course.setting(group.methods)}")
    if not panels:
        return None
    if measure is TOP1:
        known = ", ".join(f"{words} {top1:.2f} %" for words, top1 in papers_top1("resnet50").items())
        notes.append(f"The paper's, in the end, of ResNet-50 on ImageNet (Table I): {known}.")
    number = name.removeprefix("fig").removesuffix(".svg")
    what = "accuracy" if measure is TOP1 else "loss"
    return grid(panels, f"IWP, Fig. {number}: {what} by epochs", "\n".join(notes), 2, BROAD)


def _tones(group: Group) -> dict[str, str]:
    return {method.label: TONES[kind(method.label)] for method in group.methods if kind(method.label) in TONES}


def papers_top1(model: str) -> dict[str, float]:
    """Table I's accuracies of a model in percent, by method; claims have all but the baseline's as differences."""
    base = next(each.number[0] for each in CLAIMED.values() if _is_of(each.about, model, BASELINE))
    others = {
        claim.about["trained"]: base + (1 if claim.about["side"] == ABOVE else -1) * claim.number[0]
        for claim in CLAIMED.values()
        if claim.about.get("model") == model and "side" in claim.about
    }
    return {BASELINE: base, **others}


def _is_of(about: Mapping[str, object], model: str, method: str) -> bool:
    return (about.get("model"), about.get("trained")) == (model, method)


def _papers_top1(group: Group) -> list[Curve]:
    """Level lines at the paper's accuracies of the methods that are shown."""
    model = next(name for name, title in MODELS.items() if title == group.title)
    shown = {kind(method.label) for method in group.methods}
    last = max(len(run.record["history"]) for method in group.methods for run in method.runs)
    return [
        Curve(f"the paper's {method}, {top1:.2f} %", TONES[method], [1, last], [top1, top1], dash=(2, 3), points=False)
        for method, top1 in papers_top1(model).items() if method in shown
    ]  # fmt: skip


def distributions(trained: Trained) -> Figure | str:
    """Fig. 2 and 3: shares of a layer's coordinates by their importance, in the first, a middle and the last epoch.

    Of the first run that has readings; without one, the reason.
    """
    runs = [run for model in MODELS for method in (LAYERWISE, FIXED) for run in trained.get((model, method), ())]
    found = next(((run, known) for run in runs if (known := steps.distributions(run))), None)
    if found is None:
        return "no steps.jsonl has compressor/importance_share (compressor.histograms=[LAYER] output.health_every=500)"
    run, layers = found
    panels = [_distribution(layer, by_epoch) for layer, by_epoch in list(layers.items())[:MOST_LAYERS]]
    voters = run.has("config", "compressor", "voters")
    note = (
        f"{run.record['config']['model']['name']}. Importance: accumulated gradient over weight, as the {voters} "
        "voters of a step find it; means of an epoch's readings. The paper's figures have no numbers. "
        f"{provenance_of([run])}."
    )
    title = "IWP, Fig. 2 and 3: distribution of the gradient's importance"
    return grid(panels, title, note, 2, min(len(panels), 2) * (course.WIDTH + 170))


def _distribution(layer: str, by_epoch: Mapping[int, steps.Shares]) -> Panel:
    epochs = list(by_epoch)
    chosen = dict.fromkeys(epochs[round(part * (len(epochs) - 1))] for part in (0, 0.5, 1))
    tones = (colours.SKY, colours.BLUE, colours.VERMILLION)[-len(chosen) :]
    known = [100 * share for epoch in chosen for share in by_epoch[epoch]]
    seen = [place for epoch in chosen for place, share in enumerate(by_epoch[epoch]) if share]
    # The first bin begins at 0, which has no place on a logarithmic axis: it is drawn a bin's width before the second.
    places = [LOWS[1] ** 2 / LOWS[2], *LOWS[1:]]
    part = slice(max(min(seen, default=0) - 1, 0), max(seen, default=0) + 2)
    lines = [
        Curve(f"epoch {epoch}", tone, places[part], [100 * share for share in by_epoch[epoch][part]], points=False)
        for (epoch, tone) in zip(chosen, tones, strict=True)
    ]
    across = around("importance, |v| / |w|", places[part], log=True, format="~g")
    up = around("coordinates in a quarter of a decade, %", [0.0, *known])
    return curves(lines, across, up, layer, width=course.WIDTH, height=course.HEIGHT)


def ratios_by_epoch(trained: Trained) -> Figure | str:
    """Fig. 4: variance over mean of the importance of ResNet-50's first downsampling layer; without readings, why."""
    lines, used = [], []
    for method in (FIXED, LAYERWISE):
        runs = list(trained.get(("resnet50", method), ()))
        told = [(run, known) for run in runs if (known := steps.by_epoch(run))]
        if told:
            epochs = sorted(set.intersection(*(set(known) for _, known in told)))
            values = [[known[epoch] for _, known in told] for epoch in epochs]
            low, high = ([of(each) for each in values] if len(told) > 1 else [] for of in (min, max))
            lines.append(Curve(method, TONES[method], epochs, list(map(statistics.mean, values)), low, high))
            used.append([run for run, _ in told])
    if not lines:
        return f"no steps.jsonl of ResNet-50 has compressor/importance_var/{steps.LAYER} (output.health_every=500)"
    claim = CLAIMED["dispersion"]
    amounts = [value for line in lines for value in (*line.up, *line.low, *line.high)]
    name, drastic = f"the paper's drastic change: {claim.figure()}", [claim.number[0]] * 2
    lines.append(Curve(name, colours.GREY, drastic, [0.0, max(amounts)], dash=(2, 3), points=False))
    across = around("epochs", [float(at) for line in lines for at in line.across])
    up = around("variance over mean of the importance", [0.0, *amounts])
    seeds = counted(map(len, used), "seed")
    note = f"Means over {seeds}, bands from the least to the largest; of an epoch the mean of its readings. "
    note += f"{provenance_of(run for runs in used for run in runs)}."
    title = f"IWP, Fig. 4: {steps.LAYER} of ResNet-50"
    return finished(curves(lines, across, up, title, note))


def io_over_time(trained: Trained) -> Figure | str:
    """Fig. 7 and 8: KB/s that rank 0 sent, over the time of a training, a line for each method; without steps, why.

    Of each method the first run that kept its steps.jsonl.
    """
    found: defaultdict[str, dict[str, tuple[NotedRun, list[steps.Rate]]]] = defaultdict(dict)
    for (model, method), runs in trained.items():
        for run in runs:
            if method not in found[model] and (rates := steps.rates(run)):
                found[model][method] = run, rates
    panels, used = [], []
    for model in sorted((name for name in found if found[name]), key=lambda name: (name != "resnet50", name)):
        runs = [run for run, _ in found[model].values()]
        link = str(runs[0].note.get("link", ""))
        panels.append(_io(MODELS.get(model, model), {label: rates for label, (_, rates) in found[model].items()}, link))
        used += runs
    if not panels:
        return "no run kept its steps.jsonl"
    note = (
        "One run of each method. What rank 0 sent in windows of steps, one hundredth of the run each, over their time; "
        "without headers, evaluation and checkpoints. The paper's figures have no numbers that can be read. "
        f"{provenance_of(used)}."
    )
    title = "IWP, Fig. 7 and 8: network I/O over time"
    return grid(panels, title, note, 2, min(len(panels), 2) * (WIDTH + 170))


def _io(title: str, by_method: Mapping[str, Sequence[steps.Rate]], link: str) -> Panel:
    """A panel of a model; `link`: the rate of its links, "" where the runs do not say it: then the paper's."""
    lines = []
    for method, rates in sorted(by_method.items(), key=lambda pair: pair[0] not in (BASELINE, DENSE)):
        tone = TONES.get(kind(method)) or colours.method(method)
        ups = [rate.bytes_a_second / 1e3 for rate in rates]
        lines.append(Curve(method, tone, [rate.minutes for rate in rates], ups, points=len(rates) == 1))
    last = max(rate.minutes for rates in by_method.values() for rate in rates)
    rate = parse_rate(link or CLAIMED["baseline_io"].about["link"])
    full, whose = rate / 8e3, "the link" if link else "the paper's link"
    lines.append(
        Curve(f"{whose}, {rate / 1e9:g} Gbit/s", colours.GREY, [0.0, last], [full] * 2, dash=(2, 3), points=False)
    )
    across: Axis = around("time of training steps, minutes", [0.0, last])
    up = around("KB/s sent", [0.0, *(value for line in lines for value in line.up)])
    return curves(lines, across, up, title)


SENT = {"with masks, or with indices and scales": colours.BLUE}
CARRIED = {"sent by a host": colours.BLUE}
TALLEST = 80.0
"""Ratios beyond this are cut off: DGC's, at a density of 0.1 %, would make all others look alike."""


def ratios(part: str, rows: Sequence[CountedValues]) -> Figure:
    """A bar for every variant, a tick where the values alone would be, and a line at what raw masks allow."""
    bars = [
        Bar(row.label, {next(iter(SENT)): sent}, mark=_within(row.values), words=f"{sent:.1f}x")
        for row in rows
        if (sent := row.as_sent) is not None and not row.run.diverged
    ]
    bound = next((row.bound for row in rows if row.bound), None)
    line = None if bound is None else (bound, f"{bound:g}x: the masks alone")
    look = Look(SENT, line=line, cut=TALLEST, mark="values only", legend_columns=1)
    # Early in a training all bars may end far before the line.
    ends = [*(min(bar.end, TALLEST) for bar in bars), *([] if bound is None else [bound])]
    across = around("dense over sent", [0.0, *ends])
    made_on = provenance_of(row.run for row in rows)
    note = f"Bars: one run each of {rows[0].steps} steps; ticks: the values alone. {made_on}."
    return finished(stacked(bars, across, look, f"IWP, compression ratio: {part}", note))


def carried(rows: Sequence[Row]) -> Figure:
    """A bar for every method: KB/s on a host's interface, beside the link's rate."""
    known = [(row, [each for run in row.runs if (each := rate(run))]) for row in rows]
    timed = [(row, mean([each / 1e3 for each in rates])) for row, rates in known if rates]
    bars = [
        Bar(
            unlabelled(row.label), {next(iter(CARRIED)): sent.value}, _finite(sent.ends), words=f"{sent.value:,.0f}",
        )
        for row, sent in timed
    ]  # fmt: skip
    link = parse_rate(rows[0].runs[0].note["link"]) / 8e3
    across = around("KB/s sent by a host", [0.0, link, *(bar.end for bar in bars)])
    look = Look(CARRIED, legend=False, line=(link, "the link's rate"), spread="95 % interval")
    turns = counted((len(row.runs) for row, _ in timed), "turn")
    made_on = provenance_of(run for row in rows for run in row.runs)
    note = f"Bars: means of {turns}; lines: their 95 % intervals. {made_on}."
    return finished(stacked(bars, across, look, "IWP, network I/O", note))


def _finite(ends: Ends) -> Ends | None:
    """The interval to draw; None for a single turn, which has none."""
    return ends if all(map(math.isfinite, ends)) else None


def _within(ratio: float | None) -> float | None:
    """A tick that would lie beyond the panel is left out; the table has its number."""
    return ratio if ratio is not None and ratio <= TALLEST else None
