"""Figures of the study: ratios of every variant beside their bound, and what a slow link carries."""

import math
from collections.abc import Iterable, Sequence

from papers.estimate import Ends, mean
from papers.iwp.measured import Counted
from papers.iwp.network import rate
from papers.iwp.variants import unlabelled
from papers.rows import Row
from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.provenance import counted, provenance
from wirebench.figures.style import Figure, around, finished
from wirebench.record.notes import NotedRun
from wirebench.topology.rates import parse_rate

SENT = {"with masks, or with indices and scales": colours.BLUE}
CARRIED = {"sent by a host": colours.BLUE}
TALLEST = 80.0
"""Ratios beyond this are cut off: DGC's, at a density of 0.1 %, would make all others look alike."""


def ratios(part: str, rows: Sequence[Counted]) -> Figure:
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
    note = f"Bars: one run each of {rows[0].steps} steps; ticks: the values alone. {_where(row.run for row in rows)}."
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
    note = f"Bars: means of {turns}; lines: their 95 % intervals. {_where(run for row in rows for run in row.runs)}."
    return finished(stacked(bars, across, look, "IWP, network I/O", note))


def _finite(ends: Ends) -> Ends | None:
    """The interval to draw; None for a single turn, which has none."""
    return ends if all(map(math.isfinite, ends)) else None


def _within(ratio: float | None) -> float | None:
    """A tick that would lie beyond the panel is left out; the table has its number."""
    return ratio if ratio is not None and ratio <= TALLEST else None


def _where(runs: Iterable[NotedRun]) -> str:
    return provenance(run.has("environment") or {} for run in runs)
