"""The measured part's table and verdicts: steps per second, and how much of an exchange a delay hides."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from papers import trust
from papers.claim import Claim
from papers.estimate import mean, ratio_of_turns
from papers.findings import Finding, claims_table, of_rows, with_unrun
from papers.page import Page
from papers.published import load as published
from papers.rows import NEEDS, Row, by_label, emulated_setting, made_by, ms, size, with_energy
from papers.speed.parts import DENSE, PAIRS, SPARSELOCO, STREAMED, WAITING
from papers.timelines import spans_of, together
from wirebench.record import notes, recorded
from wirebench.telemetry.timeline import TRACE
from wirebench.utils.markdown import table

HEAD = (
    "method", "turns", "links", "times slower than life", "counted steps", "ms of a step [95 % interval]",
    "computing ms", "waiting for exchanges ms", "compressing ms", "bytes of a step",
)  # fmt: skip
CLAIMS = list(published(Path(__file__).parent).claims.values())
EXCHANGES = ("Sum", "Gather")
"""Kinds of requests that the part's methods make, as a timeline names them."""


def load(folder: Path) -> dict[str, Row]:
    """The rows by label, empty where there is no run; UserError where two that are compared have different settings."""
    runs = recorded.noted(folder, NEEDS)
    for pair in PAIRS:
        compared = {run.folder.name: emulated_setting(run) for run in runs if run.note["label"] in pair}
        notes.refuse_mixed(folder, compared)
    return {row.label: row for row in by_label(runs)}


def page(folder: Path) -> Page:
    """Table and verdicts."""
    rows = load(folder)
    return Page(folder, document(rows, with_unrun(findings(rows), CLAIMS)))


def findings(rows: Mapping[str, Row]) -> list[Finding]:
    """The claims about methods that have runs, by the turns that both have."""
    found = []
    for claim in CLAIMS:
        [label], [rival] = claim.about["methods"], claim.about["rivals"]
        if label in rows and rival in rows:
            measured = _measured(claim, rows[label], rows[rival])
            if measured is not None:
                found.append(measured)
    return found


def _measured(claim: Claim, row: Row, rival: Row) -> Finding | None:
    speed = claim.about["measure"] == "speed"
    ours, theirs = (each.mean_steps if speed else waiting(each) for each in (row, rival))
    shared = [turn for turn in ours if theirs.get(turn)]
    if not shared:
        return None
    if speed:
        measured = ratio_of_turns(*({turn: times[turn] for turn in shared} for times in (theirs, ours)))
        assert measured is not None
        most = bound(rival)
        here = measured.words("{:.1f}x", "{:.1f}") + ("" if most is None else f", at most {most:.1f}x")
    else:  # of the wait, all of which may be gone
        measured = mean([1 - ours[turn] / theirs[turn] for turn in shared])
        here = measured.percent()
    return of_rows(claim, here, claim.judge(measured), (row, rival))


def waiting(row: Row) -> dict[str, float]:
    """Seconds of a mean step in which a worker waits for an exchange, of each turn."""
    return row.by_turn(lambda run: run.has("phases", "exchange_exposed"))


def bound(dense: Row) -> float | None:
    """How much faster a step would be without any exchange: 1 + exchange / computing; None without a counted step."""
    steps, waits = dense.mean_steps, waiting(dense)
    values = [steps[turn] / (steps[turn] - waits[turn]) for turn in steps if turn in waits]
    return statistics.median(values) if values else None


def document(rows: Mapping[str, Row], found: Sequence[Finding]) -> str:
    """The whole file."""
    run = next(iter(rows.values())).runs[0]
    known = [rows[label] for label in (DENSE, SPARSELOCO, STREAMED, WAITING) if label in rows]
    lines = [
        "# The methods of today: steps per second",
        "",
        f"{run.record['config']['model']['trace']} on {run.note['hosts']} emulated hosts of one worker each, all on "
        f"one {run.machine}. Links and the trace are as much slower than life as the table says, and so are the "
        "milliseconds. What the workers compute themselves, on cores that they share, is not slowed down, and small "
        "beside it. Counted steps are whole rounds of 30, of dense training single ones, and means are of them all; "
        "waiting is what of an exchange nothing hides. "
        f"{made_by('speed', (each for row in known for each in row.runs))}",
        "",
        *table(*with_energy(HEAD, [_cells(row) for row in known], known)),
        *trust.note({row.label: row.runs for row in known}, "turns"),
        *claims_table(found),
        *(_limit(rows[DENSE]) if DENSE in rows else []),
        *(line for label in (STREAMED, WAITING) if label in rows for line in _drawn(rows[label])),
    ]
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    seconds, run = list(row.mean_steps.values()), row.runs[0]
    return [
        row.title,
        str(len(row.runs)),
        run.note["link"],
        f"{run.has('config', 'network', 'dilation') or 1:g}",
        str(run.record["images_per_second"]["steps"]),
        mean(seconds).mapped(lambda each: 1e3 * each).words("{:.1f}", "{:.1f}") if seconds else "-",
        ms(row.computing),
        ms(row.median("phases", "exchange_exposed")),
        ms(row.median("phases", "compress")),
        size(row.median("bytes_per_step", "wire_mean")),
    ]


def _limit(dense: Row) -> list[str]:
    """What bounds the speed-up, whatever the method."""
    most = bound(dense)
    if most is None:
        return []
    return [
        f"Without any exchange a step would be {most:.1f} times as fast as that of dense training: 1 + exchange / "
        "computing. What SparseLoCo misses of it are its own exchanges and its top-k, once in 30 steps.",
        "",
    ]


def _drawn(row: Row) -> list[str]:
    """How much of its exchanges lies beside local steps, in the timeline of its first turn."""
    run = row.runs[0]
    spans = spans_of(run.files.get(TRACE), run.folder / TRACE)
    exchanges = [(begin, end) for name, begin, end in spans if name in EXCHANGES]
    if not exchanges:
        return []
    waits = [(begin, end) for name, begin, end in spans if name == "exchange_exposed"]
    total = sum(end - begin for begin, end in exchanges)
    return [
        f"`{row.label}`: in the steps that {run.folder.name}/{TRACE} shows (ui.perfetto.dev), "
        f"{ms(total - together(exchanges, waits))} of the {ms(total)} ms of its exchanges lie beside local steps.",
        "",
    ]
