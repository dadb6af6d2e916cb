"""The FlexReduce report in words: measured, ideal and paper side by side, as one Markdown page."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from papers.estimate import Estimate
from papers.findings import Finding, claims_table
from papers.flexreduce import measured as numbers
from papers.flexreduce.claims import on_average, percent, whole
from papers.flexreduce.measured import CLAIMS, COLLECTIVES, LAYOUTS, Latencies, TrainingRow
from papers.page import Drawn
from papers.rows import ms
from wirebench.record.collective_results import AllReduceResult
from wirebench.topology.rates import parse_rate, show_rate
from wirebench.utils.markdown import table

MISSING = "-"
LABELS = {"ring": "ring", "native": "native", "blueconnect": "BlueConnect", "flexreduce": "FlexReduce"}
OF_IDEAL = "{:.0f} to {:.0f} %".format(*(100 * end for end in CLAIMS["of_ideal"].number))
RIVALS = ("ring", "native")
"""What FlexReduce's epochs are compared with."""
REACHED = whole(1 - CLAIMS["saving_2_machines"].tolerance)
INTRODUCTION = f"""# FlexReduce beside its paper

Lee, Hwang, Shah and Cho, "FlexReduce: Flexible All-reduce for Distributed Deep Learning on Asymmetric Network
Topology", DAC 2020, section V. Emulated clusters: network namespaces on one machine, joined by shaped links
(`wirebench cluster`). A layout such as 2+3 has 2 learners on one machine and 3 on the other. The paper had GTX 1080 Ti
and NCCL, whose all-reduce is a ring; here `ring` is our own over the same transport as FlexReduce, `native` the
engine's.

Times are medians of repeats in which the collectives take turns. A saving is of the median of turn-by-turn ratios, in
brackets its 10th and 90th percentile. *ideal*: the saving that links alone allow, 1 - ((M-1)/M) / ((N-1)/N) for N
learners on M machines. *saving / ideal* of at least {REACHED} counts as reproduced; *ideal time / time* is
how the paper counts its {OF_IDEAL}. *link use*: bytes by the plan over what the busiest link could carry in the time;
headers take 0.7 %, so 99 % is a full link.

Small all-reduces say less about the links, and every round waits for the one before. An idle link passes its first
bytes at once: a host's 0.5 ms worth or 18 KB, a port of the switch twice that.
"""


class Results(NamedTuple):
    """What was measured.

    rows      all-reduces; headers: of their files, by layout, with `link` where it is known
    runs      trainings; notes: by layout where and how they ran, with the same keys as a header
    """

    rows: list[Latencies]
    headers: Mapping[str, Mapping[str, Any]]
    runs: list[TrainingRow]
    notes: Mapping[str, Mapping[str, Any]]


def document(results: Results, found: Sequence[Finding], drawn: Drawn) -> str:
    """The page."""
    items = numbers.main_items(results.rows)
    chosen = [row for row in results.rows if row.items == items]
    others = [row for row in results.rows if row.items != items]
    parts = [INTRODUCTION, "## Claims\n", "\n".join(claims_table(found))]
    if chosen:
        parts += [
            f"## All-reduce of {items:,} floats\n",
            _latency(chosen, results.headers, judged=True),
            _checked(results.rows),
        ]
    if others:
        parts += ["## Other sizes\n", _latency(others, results.headers, judged=False)]
    parts += ["## Reduce calls per learner\n", _calls(), "## Time per epoch\n", _training(results.runs, results.notes)]
    parts += ["## Figures\n", _figures(drawn), "## How it was measured\n", _measured(results)]
    return "\n".join(parts)


def _latency(rows: Sequence[Latencies], headers: Mapping[str, Mapping[str, Any]], judged: bool) -> str:
    """One line per row; `judged`: with the verdict, which only the size that the claims are about has."""
    heads = (
        "layout", "learners", "floats", "link", *(f"{LABELS[name]} ms" for name in COLLECTIVES),
        "FlexReduce saves over ring", "ideal", "paper", "saving / ideal", "ideal time / time",
        "FlexReduce saves over native", "BlueConnect saves over ring", "link use ring", "link use FlexReduce",
    )  # fmt: skip
    lines = [_latency_row(row, headers[row.layout].get("link")) + [row.verdict.state] * judged for row in rows]
    return "\n".join(table([*heads, *["verdict"] * judged], lines))


def _latency_row(row: Latencies, link: str | None) -> list[str]:
    low, high = numbers.saving_claim(len(row.topology.machines)).number
    rate = None if link is None else parse_rate(link)
    uses = [None if rate is None else row.link_use(name, rate) for name in ("ring", "flexreduce")]
    return [
        row.layout,
        str(row.topology.size),
        f"{row.items:,}",
        MISSING if rate is None else show_rate(rate),
        *(ms(row.seconds(name)) for name in COLLECTIVES),
        _spread(row.saving("flexreduce", "ring")),
        percent(row.ideal),
        f"{whole(low)} - {whole(high)}",
        _share(row.reached),
        _share(row.of_ideal_speed.value if row.of_ideal_speed else None),
        _spread(row.saving("flexreduce", "native")),
        _spread(row.saving("blueconnect", "ring")),
        *map(_share, uses),
    ]


def _checked(rows: Sequence[Latencies]) -> str:
    every: list[tuple[Latencies, AllReduceResult]] = [(row, cell) for row in rows for cell in row.cells.values()]
    differing = [f"{c.collective} on {row.layout}, {row.items:,} floats" for row, c in every if not c.identical]
    largest = max(cell.max_error for _, cell in every)
    same = "RANKS DIFFER: " + "; ".join(differing) if differing else "All ranks ended with the same bits"
    return f"Every all-reduce was checked first. {same}; largest error {largest:.0e} of the sum of magnitudes.\n"


def _calls() -> str:
    heads = (
        "layout",
        "mean over levels",
        "paper",
        "mean at the root",
        "most of one learner",
        "bound (Eq. 12)",
        "paper",
    )
    most, bounds = CLAIMS["mean_calls"].shown, CLAIMS["bound_on_calls"].shown
    rows = []
    for layout in LAYOUTS:
        count = numbers.count_calls(layout)
        rows.append((layout, f"{count.mean:.2f}", most, f"{count.top:.2f}", str(count.most), str(count.bound), bounds))
    return "\n".join(table(heads, rows))


def _training(runs: Sequence[TrainingRow], notes: Mapping[str, Mapping[str, Any]]) -> str:
    if not runs:
        return "Not measured: `wirebench study flexreduce run --end-to-end`.\n"
    heads = (
        "layout", "batch", "link", *(f"{LABELS[name]} s" for name in COLLECTIVES), "FlexReduce saves over ring",
        "over native", "paper (NCCL)", "BlueConnect adds to ring", "paper (uneven)", "turns",
    )  # fmt: skip
    layouts = [layout for layout in LAYOUTS if any(run.layout == layout for run in runs)]
    text = f"ResNet-18; median step times {numbers.EPOCH_IMAGES:,} images over the batch of all learners.\n\n"
    links = {layout: notes[layout].get("link", MISSING) for layout in layouts}
    text += "\n".join(table(heads, [_training_row(runs, layout, link) for layout, link in links.items()]))
    return text + _by_bytes(runs, {layout: parse_rate(link) for layout, link in links.items() if link != MISSING})


_MS = "{:.0f}".format
_BY_BYTES_HEADS = (
    "layout", "ideal", "ring's bytes ms", "FlexReduce's bytes ms",
    *(f"over {rival}: {what}" for rival in RIVALS for what in ("step ms", "ring's bytes", "bytes save", "saved")),
)  # fmt: skip
_BY_BYTES_FORMS = (percent, _MS, _MS, *(_MS, percent, percent, percent) * len(RIVALS))
_BY_BYTES = """
*bytes*: how long they keep a machine's link busy in a step, without headers and start-ups. *bytes save*: the difference
of both as a share of the rival's step; the native all-reduce counts as a ring. *saved*: what was measured.

{table}
If bytes alone save the paper's {papers}, the ring's bytes take {needed} of its steps, since the mean ideal of its nine
layouts is {ideal}.
"""


def _by_bytes(runs: Sequence[TrainingRow], rates: Mapping[str, float]) -> str:
    """What FlexReduce's fewer bytes on a machine's link save of a step, beside what was saved, with the means.

    rates  bits per second of the links, by layout; a layout counts if it has all three collectives
    """
    rows: list[tuple[str, list[float]]] = []
    for layout, rate in rates.items():
        here = [run for run in runs if run.layout == layout]
        ring, ours = numbers.link_seconds(layout, here[0].gradient_bytes, rate)
        savings = [numbers.faster(runs, layout, "flexreduce", rival) for rival in RIVALS]
        row = [numbers.ideal_saving(layout), 1e3 * ring, 1e3 * ours]
        for rival, saved in zip(RIVALS, savings, strict=True):
            if saved is not None:
                step = statistics.median(run.step_seconds for run in here if run.collective == rival)
                row += [1e3 * step, ring / step, (ring - ours) / step, saved.value]
        if None not in savings:
            rows.append((layout, row))
    if not rows:
        return ""
    rows.append(("mean", [statistics.mean(column) for column in zip(*(row for _, row in rows), strict=True)]))
    lines = [[layout, *(form(n) for form, n in zip(_BY_BYTES_FORMS, row, strict=True))] for layout, row in rows]
    [claimed], ideal = CLAIMS["epoch_over_native"].number, statistics.mean(map(numbers.ideal_saving, LAYOUTS))
    return _BY_BYTES.format(
        table="\n".join(table(_BY_BYTES_HEADS, lines)),
        papers=percent(claimed),
        ideal=percent(ideal),
        needed=whole(claimed / ideal),
    )


def _training_row(runs: Sequence[TrainingRow], layout: str, link: str) -> list[str]:
    here = [run for run in runs if run.layout == layout]
    slower = numbers.faster(runs, layout, "blueconnect", "ring")
    added = None if slower is None else slower.mapped(lambda share: -share)
    epochs = [numbers.epoch_seconds(runs, layout, name) for name in COLLECTIVES]
    return [
        layout,
        " and ".join(str(size) for size in sorted({run.batch_size for run in here})),
        link,
        *(MISSING if seconds is None else f"{seconds:.0f}" for seconds in epochs),
        _spread(numbers.faster(runs, layout, "flexreduce", "ring")),
        _spread(numbers.faster(runs, layout, "flexreduce", "native")),
        on_average(CLAIMS["epoch_over_native"]),
        _spread(added),
        MISSING if numbers.is_even(layout) else percent(CLAIMS["epoch_blueconnect_adds"].number[0]),
        str(len({run.turn for run in here})),
    ]


def _figures(drawn: Drawn) -> str:
    shown = [f"![{caption}]({name})\n" for name, caption in drawn.captions.items()]
    return "\n".join([*shown, *(f"Left out: {name}: {reason}.\n" for name, reason in drawn.missing.items())])


def _measured(results: Results) -> str:
    """Machines and commands, each once."""
    if not results.headers and not results.notes:
        return "Nothing is measured yet: `wirebench study flexreduce run`.\n"
    lines = []
    for what, headers in (("all-reduce", results.headers), ("training", results.notes)):
        machines: dict[str, list[str]] = {}
        for layout, header in headers.items():
            machines.setdefault(_machine(header), []).append(layout)
        lines += [f"- {what}, {', '.join(layouts)}: {machine}" for machine, layouts in machines.items()]
        for layout, header in headers.items():
            lines.append(f"- {what}, {layout}: `{header.get('launch') or header['environment'].get('command')}`")
    return "\n".join(lines) + "\n"


def _machine(header: Mapping[str, Any]) -> str:
    environment = header["environment"]
    cpu, git = environment.get("cpu") or {}, environment.get("git")
    commit = "no commit" if git is None else f"commit {git['commit'][:10]}{' with changes' if git['dirty'] else ''}"
    versions = environment.get("versions") or {}
    return (
        f"{cpu.get('model') or 'unknown CPU'}, {cpu.get('cores') or '?'} cores; {header.get('engine')} "
        f"({header.get('backend')}); torch {versions.get('torch')}; {commit}"
    )


def _share(share: float | None) -> str:
    return MISSING if share is None else percent(share)


def _spread(share: Estimate | None) -> str:
    return MISSING if share is None else share.percent()
