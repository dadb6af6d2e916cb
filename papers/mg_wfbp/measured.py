"""Schedules on emulated hosts beside their predictions and the MG-WFBP paper's measured rates: a table and a figure."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from papers import trust
from papers.findings import Finding, of_rows
from papers.mg_wfbp.paper import MODELS, PAPERS_LINKS, PUBLISHED, SCHEDULES, PaperModel
from papers.page import Page
from papers.rows import Row, cluster, load, made_by, ms, provenance_of, times_faster, with_energy
from papers.timelines import FORMERLY_ALL_GATHER, spans_of, together
from wirebench.exchange.reduce_scatter import WAIT
from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.provenance import counted
from wirebench.figures.style import Figure, around, finished
from wirebench.record.notes import NotedRun
from wirebench.telemetry.timeline import ALL_GATHER, TRACE
from wirebench.topology.rates import parse_rate
from wirebench.utils.markdown import table

HEAD = ("schedule", "messages", "step ms [10 % - 90 % of all steps]", "exposed ms", "predicted ms", "error")
EXCHANGES_HEAD = ("schedule", "messages", "exchanges ms", "of which start-ups ms", "exposed ms")
PAIRS_HEAD = ("faster", "than", "here [95 % interval]", "MG-WFBP paper, with 10GbE")
ONE_NETWORK = "on GoogLeNet alone: the times of ResNet-50's layers were not published"
"""The rest of the paper's sentence, which cannot be run."""
PAIRS = (
    ("mg_wfbp", "wfbp"),
    ("mg_wfbp", "sync_easgd"),
    ("optimal", "mg_wfbp"),
    ("optimal", "wfbp"),
    ("dear", "wfbp"),
    ("dear bucket_cap_mb=4", "wfbp"),
    ("dear bucket_cap_mb=1", "wfbp"),
    ("optimal", "fused"),
    ("optimal", "native"),
)


def page(folder: Path) -> Page:
    """The report of a folder of runs."""
    rows = load(folder)
    return Page(folder, document(rows), {"steps.svg": figure(rows)}, leads=True)


def findings(folder: Path) -> list[Finding]:
    """The paper's measured factors beside the factors of a folder of runs of the same setting; none of another
    setting.
    """
    rows = load(folder)
    known = {row.label: row for row in rows if not row.diverged}
    found = []
    for claim in PUBLISHED.claims.values():
        rival, run = claim.about.get("emulated_over"), rows[0].runs[0]
        figure = None if rival is None else _papers(run, "mg_wfbp", rival)
        if not _is_the_claims(run) or rival is None or figure is None or not {rival, "mg_wfbp"} <= known.keys():
            continue
        pair = known["mg_wfbp"], known[rival]
        ratio = times_faster(*pair)
        if ratio:
            verdict = claim.judge(ratio, expected=figure)
            verdict = verdict._replace(why="; ".join(filter(None, (verdict.why, ONE_NETWORK))))
            about = f"{folder.name}: {PAPERS_LINKS[_link(run)]}"
            found.append(of_rows(claim, ratio.words(), verdict, pair, about, f"{figure:.2f}x"))
    return found


def _is_the_claims(run: NotedRun) -> bool:
    """Whether it is of as many nodes as the claims, with layer times that were measured."""
    model = _model(run)
    return model is not None and model.measured and run.record["world_size"] == model.nodes[-1]


def document(rows: Sequence[Row]) -> str:
    """The whole file."""
    first = rows[0].runs[0]
    model, dilation = first.record["config"]["model"], first.has("config", "network", "dilation") or 1
    slowed = f" Computation is slowed down {dilation:g} times, as the links are." if dilation != 1 else ""
    lines = [
        f"# Schedules on {model.get('trace', model.get('name', '?'))}",
        "",
        f"{first.record['world_size']} workers on {first.note['hosts']} emulated hosts with links of "
        f"{first.note['link']}, all on one {first.machine}; turns of each: {len(rows[0].runs)}.{slowed} "
        "Exposed: what a step waits for messages when its backward pass is over. A prediction is a simulation of the "
        "schedule, with messages and computation timed apart in the run's own uncounted steps (docs/record.md).",
        "",
        made_by("mg_wfbp", (run for row in rows for run in row.runs)),
        "",
        *table(*with_energy(HEAD, [_cells(row) for row in rows], rows)),
        *trust.note({row.label: row.runs for row in rows}, "turns"),
        *table(PAIRS_HEAD, _pairs(rows)),
        *_exchanges(rows),
        *_all_gathers(rows),
        "![time per step](steps.svg)",
        "",
    ]
    return "\n".join(lines)


def figure(rows: Sequence[Row]) -> Figure:
    """A bar for every schedule, with the prediction of each."""
    bars = [_bar(row) for row in rows if row.step_seconds]
    across = around("time per step, ms", [0.0, *(bar.end for bar in bars)])
    look = Look(
        {bar.name: colours.schedule(bar.name) for bar in bars}, legend=False, spread="steps, 10 % to 90 %",
        mark="predicted", width=250,
    )  # fmt: skip
    runs = [run for row in rows for run in row.runs]
    note = (
        f"Bars: medians of {counted((len(row.runs) for row in rows), 'turn')}; thin lines: 10 % to 90 % of all steps; "
        f"thick marks: predictions. {provenance_of(runs)}."
    )
    return finished(stacked(bars, across, look, f"Schedules, time per step: {cluster(rows)}", note))


def _bar(row: Row) -> Bar:
    predicted, seconds = row.median("prediction", "step_seconds"), row.step_seconds or 0.0
    words, mark = ms(seconds, 0), None if predicted is None else 1e3 * predicted
    if predicted is not None:
        words += f", predicted {ms(predicted, 0)} ({100 * (predicted / seconds - 1):+.1f} %)"
    return Bar(row.title, {row.title: 1e3 * seconds}, row.spread_ms, mark, words)


def _cells(row: Row) -> list[str]:
    seconds, between = row.step_seconds, row.steps_between
    exposed, predicted = row.median("phases", "exchange_exposed"), row.median("prediction", "step_seconds")
    messages = row.median("prediction", "messages")
    return [
        row.title,
        "-" if messages is None else f"{messages:g}",
        "-" if between is None else f"{ms(seconds)} [{ms(between[0])} - {ms(between[1])}]",
        ms(exposed),
        ms(predicted),
        "-" if predicted is None or not seconds else f"{100 * (predicted / seconds - 1):+.1f} %",
    ]


def _pairs(rows: Sequence[Row]) -> list[list[str]]:
    known = {row.label: row for row in rows if not row.diverged}
    pairs = []
    for name, other in PAIRS:
        ratio = times_faster(known[name], known[other]) if {name, other} <= known.keys() else None
        if ratio:
            papers = _papers(rows[0].runs[0], name, other)
            cells = [name, other, ratio.words()]
            pairs.append([*cells, "-" if papers is None else f"{papers:.2f}x"])
    return pairs


def _exchanges(rows: Sequence[Row]) -> list[str]:
    """How long the messages of the paper's schedules take, beside the backward pass that can hide them.

    Nothing where no message has a time, or all have the same size. Messages of other schedules are not told: a request
    of `dear` also waits for its all-gather.
    """
    known = [row for row in rows if row.label in SCHEDULES and not row.diverged and all(map(_messages, row.runs))]
    messages = [[_messages(run) for run in row.runs] for row in known]
    sent = [message for turns in messages for turn in turns for message in turn]
    if len({size for size, _ in sent}) < 2:
        return []
    per_byte, start_up = statistics.linear_regression(*zip(*sent, strict=True))
    backward = [run.record["phases"]["backward"] for row in known for run in row.runs]
    cells = []
    for row, turns in zip(known, messages, strict=True):
        count, seconds = (statistics.median(map(each, turns)) for each in (len, lambda turn: sum(s for _, s in turn)))
        spent = (seconds, count * start_up, row.median("phases", "exchange_exposed"))
        cells.append([row.label, f"{count:g}", *(ms(each or 0.0, 0) for each in spent)])
    return [
        f"A backward pass takes {ms(statistics.median(backward), 0)} ms, and exchanges that end within it add "
        f"nothing to a step. A message takes {ms(start_up)} ms and {1e9 * per_byte:.1f} ns per byte, by least "
        f"squares over the {len(sent)} messages of the last step of every turn. These are rank 0's requests, which "
        "also wait for other ranks.",
        "",
        *table(EXCHANGES_HEAD, cells),
    ]


def _messages(run: NotedRun) -> list[tuple[int, float]]:
    """Bytes and seconds of each request of the last step; none of an older record, whose requests lack them."""
    timed = (each for each in run.record["requests"] if {"payload_bytes", "seconds"} <= each.keys())
    return [(each["payload_bytes"], each["seconds"]) for each in timed]


def _all_gathers(rows: Sequence[Row]) -> list[str]:
    """How much of the all-gathers of split schedules forward passes hide, by the timelines of their first turns."""
    lines = []
    for row in rows:
        run = row.runs[0]
        spans = spans_of(run.files.get(TRACE), run.folder / TRACE)
        gathers = [(begin, end) for name, begin, end in spans if name.endswith((ALL_GATHER, FORMERLY_ALL_GATHER))]
        if gathers:
            forward = [(begin, end) for name, begin, end in spans if name == "forward"]
            waits = [(begin, end) for name, begin, end in spans if name.startswith(WAIT)]
            hidden = together(gathers, forward) - together(gathers, waits)
            total = sum(end - begin for begin, end in gathers)
            lines += [
                f"`{row.label}`: a forward pass hides {ms(hidden, 0)} of the {ms(total, 0)} ms of all-gathers in "
                f"the steps that {run.folder.name}/{TRACE} shows (ui.perfetto.dev); during the rest the forward pass "
                "waits for them or has not begun.",
                "",
            ]
    return lines


def _papers(run: NotedRun, name: str, other: str) -> float | None:
    """The paper's ratio for as many nodes; None of another model or network, or of schedules that it has not."""
    nodes, model = run.record["world_size"], _model(run)
    if model is None or nodes not in model.nodes:
        return None
    if _link(run) not in PAPERS_LINKS:
        return None
    if not {name, other} <= model.rates.keys():
        return None
    return model.seconds(nodes, other) / model.seconds(nodes, name)


def _model(run: NotedRun) -> PaperModel | None:
    """The paper's network that it replays."""
    trace = run.record["config"]["model"].get("trace")
    return next((model for model in MODELS if model.trace == trace), None)


def _link(run: NotedRun) -> float:
    """Bits per second of a link at full speed."""
    return parse_rate(run.note["link"]) * (run.has("config", "network", "dilation") or 1)
