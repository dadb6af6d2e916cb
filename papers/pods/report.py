"""Hybrid sharding beside what compresses between pods: results/pods/table.md.

wirebench study pods report                  from the runs in results/pods
wirebench study pods report --runs FOLDER --dir FOLDER
"""

import argparse
import statistics
from collections.abc import Mapping
from pathlib import Path

from papers import trust
from papers.accuracy.rows import tokens
from papers.claim import Claim, Verdict
from papers.estimate import mean, ratio_of_means, ratio_of_turns
from papers.findings import Finding, claims_table, of_rows, with_unrun
from papers.page import Page
from papers.pods.parts import ALONE, DENSE, SHARDS, TIMES
from papers.pods.predicted import predicted
from papers.published import load as published
from papers.rows import Row, load_alike, made_by, ms
from papers.runner import RESULTS
from wirebench.errors import UserError
from wirebench.record.notes import NotedRun
from wirebench.topology.rates import parse_rate, show_rate
from wirebench.utils.markdown import table

RUNS, LOSS = RESULTS / "pods", "loss"
NEEDS = {"label": str, "layout": str, "link": str, "launch": str}
HEAD = (
    "method", "turns", "steps/s [95 % interval]", "x dense", "ms of a step", "exchange / computing", "predicted ms",
    "error", "MB within a pod (predicted)", "MB between pods (predicted)",
)  # fmt: skip
LOSS_HEAD = ("method", "seeds", "steps", "tokens a parameter", "test loss [95 % interval]", "x dense",
             "MB between pods")  # fmt: skip
CLAIMS = list(published(Path(__file__).parent).claims.values())
NEAR = 0.95, 1.15
"""Between which shares of the wanted ratio of exchange to computing a part's links have to be."""
TITLE = "# Between pods of a sharded model"
NO_RUNS = "Nothing is measured yet: `wirebench study pods run` makes the runs, as root."
Rows = Mapping[str, Row]


def flags(parser: argparse.ArgumentParser) -> None:
    """Where the runs are, and the report goes."""
    add = parser.add_argument
    add("--runs", type=Path, default=RUNS, metavar="FOLDER", help="PART/METHOD-TURN (results/pods)")
    add("--dir", type=Path, default=RUNS, metavar="FOLDER", help="of the report (results/pods)")


def load(folder: Path) -> Rows:
    """The rows of a part by label, {} where there is no run; UserError for runs of several settings."""
    return load_alike(folder, _setting, NEEDS)


def _setting(run: NotedRun) -> dict[str, object]:
    """Return the settings that the runs of a part share."""
    config = run.record["config"]
    place = {key: run.note[key] for key in ("layout", "link")} | {"machine": run.machine, "shards": run.has("shards")}
    return {**place, "model": config["model"], "batch size": config["data"].get("batch_size")}


def findings(options: argparse.Namespace) -> list[Finding]:
    """The claims about steps per second, by the turns that both rows have."""
    found = []
    for name, times in TIMES.items():
        rows = load(options.runs / name)
        found += [each for claim in CLAIMS if claim.about["times"] == times and (each := _finding(claim, rows))]
    return with_unrun(found, CLAIMS)


def _finding(claim: Claim, rows: Rows) -> Finding | None:
    [label], [rival] = claim.about["methods"], claim.about["rivals"]
    if label not in rows or rival not in rows:
        return None
    measured = ratio_of_turns(rows[rival].mean_steps, rows[label].mean_steps)
    ratio = exchange_over_computing(rows)
    if measured is None or ratio is None:
        return None
    here = f"{measured.words('{:.1f}x', '{:.1f}')}; dense takes {ratio:.1f} times the computing"
    verdict = claim.judge(measured)
    if not NEAR[0] <= ratio / claim.about["times"] <= NEAR[1]:
        verdict = Verdict("other setting", measured.value, f"dense takes {ratio:.1f} times the computing")
    return of_rows(claim, here, verdict, (rows[label], rows[rival], rows[ALONE]))


def exchange_over_computing(rows: Rows) -> float | None:
    """How many times as long as the rest of a step its dense exchange takes; None where a row of both lacks."""
    dense, alone = (rows[label].mean_step if label in rows else None for label in (DENSE, ALONE))
    return None if dense is None or alone is None else dense / alone - 1


def ratio_words(name: str, rows: Rows) -> str:
    """How long the dense exchange of a part takes, and on which links it would take as long as wanted."""
    times, ratio, dense = TIMES[name], exchange_over_computing(rows), rows.get(DENSE)
    if ratio is None or dense is None:
        return f"Without runs of `{DENSE}` and `{ALONE}` it is not known how long the dense exchange takes."
    told = f"The dense exchange takes {ratio:.1f} times as long as a step computes; wanted are {times} times"
    if NEAR[0] <= ratio / times <= NEAR[1]:
        return f"{told}."
    within, between = dense.runs[0].note["link"].split(";")
    rate = float(f"{parse_rate(between) * ratio / times:.3g}")
    return f'{told}, as links of --link "{within};{show_rate(rate)}" would give.'


def pages(options: argparse.Namespace) -> list[Page]:
    """One table for each rate between pods, and one of losses."""
    parts = {name: rows for name in TIMES if (rows := load(options.runs / name))}
    losses = load(options.runs / LOSS)
    if not parts and not losses:
        if options.runs != RUNS:
            raise UserError(f"{options.runs}: has no PART/METHOD-TURN; wirebench study pods run makes them")
        return [Page(options.dir, "\n".join([TITLE, "", NO_RUNS, "", *claims_table(findings(options))]))]
    run = next(iter((losses or next(iter(parts.values()))).values())).runs[0]
    every = (each for rows in (*parts.values(), losses) for row in rows.values() for each in row.runs)
    text = [
        TITLE,
        "",
        f"A GPT of {run.record['parameters']:,} parameters in pods of {SHARDS} hosts of one worker each, all on one "
        f"{run.machine}. FSDP2 shards the model within a pod. `{DENSE}` is its own hybrid sharding, `{ALONE}` is pods "
        "that train alone: what a step takes beyond theirs is its exchange. Steps and bytes are means over counted "
        "steps, of local steps over 30, of which one exchanges. Bytes are of a rank and step, by the counters of the "
        f"links, with headers. Predictions take the step of `{ALONE}` and simulate the exchange between pods on links "
        f"at their nominal rates. {made_by('pods', every)}",
        "",
        *claims_table(findings(options)),
        *(line for name, rows in parts.items() for line in _section(name, rows)),
        *(_losses(losses) if losses else []),
    ]  # fmt: skip
    return [Page(options.dir, "\n".join(text))]


def _section(name: str, rows: Rows) -> list[str]:
    within, between = next(iter(rows.values())).runs[0].note["link"].split(";")
    by_speed = sorted(rows.values(), key=lambda row: row.mean_step or float("inf"))
    return [
        f"## {name}: links of {within} within pods, {between} between them",
        "",
        ratio_words(name, rows),
        "",
        *table(HEAD, [_cells(row, rows) for row in by_speed]),
        *trust.note({row.label: row.runs for row in rows.values()}, "turns"),
    ]


def _cells(row: Row, rows: Rows) -> list[str]:
    steps, seconds, alone = row.mean_steps, row.mean_step, rows[ALONE].mean_step if ALONE in rows else None
    rate = mean([1 / each for each in steps.values()]).words("{:.3g}", "{:.3g}") if steps else "-"
    dense = ratio_of_turns(rows[DENSE].mean_steps, steps) if DENSE in rows and row.label != DENSE else None
    told = predicted(row, rows[ALONE], SHARDS) if ALONE in rows and row.label != ALONE else None
    off = "-" if told is None or seconds is None else f"{100 * (told.seconds / seconds - 1):+.1f} %"
    return [
        row.title, str(len(row.runs)), rate, "-" if dense is None else dense.words("{:.2f}x", "{:.2f}"),
        ms(seconds, 0), "-" if alone is None or seconds is None or row.label == ALONE else f"{seconds / alone - 1:.2f}",
        "-" if told is None else ms(told.seconds, 0), off,
        _mb(row.median("levels", "within"), None if told is None else told.within),
        _mb(row.median("levels", "between"), None if told is None else told.between),
    ]  # fmt: skip


def _losses(rows: Rows) -> list[str]:
    by_loss = sorted(rows.values(), key=lambda row: statistics.fmean(_of_seeds(row)) if _of_seeds(row) else 1e9)
    return [
        "## Loss after equal steps",
        "",
        *table(LOSS_HEAD, [_loss_cells(row, rows.get(DENSE)) for row in by_loss]),
        *trust.note({row.label: row.runs for row in rows.values()}, "seeds"),
    ]


def _loss_cells(row: Row, dense: Row | None) -> list[str]:
    mine, theirs = _of_seeds(row), [] if dense is None else _of_seeds(dense)
    ratio = ratio_of_means(mine, theirs).words("{:.3f}x", "{:.3f}") if mine and theirs and row is not dense else "-"
    return [
        row.title, str(len(row.runs)), str(row.runs[0].record["steps_done"]), tokens(row.runs),
        mean(mine).words("{:.4f}", "{:.4f}") if mine else "-", ratio, _mb(row.median("levels", "between"), None),
    ]  # fmt: skip


def _of_seeds(row: Row) -> list[float]:
    return [loss for run in row.runs if (loss := run.has("final", "loss")) is not None]


def _mb(measured: float | None, told: float | None) -> str:
    known = "-" if measured is None else f"{measured / 1e6:.3g}"
    return known if told is None else f"{known} ({told / 1e6:.3g})"
