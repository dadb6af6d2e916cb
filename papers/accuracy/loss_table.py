"""table.md of a task: losses for the same tokens and for the same time, bytes, times, and who is on the front."""

import statistics
from collections.abc import Sequence

from papers import lossless, trust
from papers.accuracy import cells
from papers.accuracy.curve import WINDOW, steps_of
from papers.accuracy.grid import NAMED_FLOPS
from papers.accuracy.modern import LARGER, OTHER_DENSE, SHORTER
from papers.accuracy.rows import (
    MethodRuns,
    against_dense,
    dense_of,
    losses,
    multiplicity,
    runs_of,
    shared,
    tokens,
)
from papers.accuracy.sizes import AT
from papers.accuracy.task import Task, laid_over
from papers.accuracy.times import Yardstick, equal_time, fronts, steps_table
from papers.claim import Claim
from papers.findings import Finding, claims_table
from papers.rows import spread, with_energy
from papers.runner import in_words
from papers.significance import LEVEL, Comparison
from wirebench.utils.markdown import table

INTERVALS = f"A ratio of losses has its {100 * (1 - LEVEL):.0f} % interval in brackets, by Fieller's theorem."
HEAD = ("method", "seeds", "tokens a parameter", "test loss", "over dense", "against dense (Welch)", "metric",
        "bytes of a run", "fewer bytes", "learning rate")  # fmt: skip
TOKENS = HEAD.index("tokens a parameter")


def document(
    task: Task,
    methods: Sequence[MethodRuns],
    found: Sequence[Finding],
    figures: Sequence[str],
    by: Yardstick,
    doubts: Sequence[str] = (),
) -> str:
    """The whole file.

    figures  names of the files beside it
    doubts   lines on rows that another learning rate would make better
    """
    whole = [method for method in methods if method.label not in SHORTER]
    dense = dense_of(whole)
    compared = {method.label: each for method, each in zip(whole, against_dense(whole), strict=True)}
    lines = [f"# The methods of today: {task.name}", "", *_setting(task, methods)]
    rows: list[Sequence[str]] = [HEAD, *(_cells(method, dense, compared.get(method.label)) for method in methods)]
    if all(row[TOKENS] == "-" for row in rows[1:]):  # images have none
        rows = [[*row[:TOKENS], *row[TOKENS + 1 :]] for row in rows]
    head, lines_of = with_energy(rows[0], rows[1:], methods)
    unit = lossless.unit_of(run for method in methods for run in method.runs)
    lines += [*table(head, [*lines_of, lossless.row(head, "fewer bytes", unit)]), *lossless.note(unit)]
    lines += [multiplicity(compared.values()), "", *doubts]
    lines += trust.note({method.label: method.runs for method in methods}, "seeds")
    lines += [*claims_table(found), INTERVALS, "", *_settings_of(found)] if found else []
    lines += [*steps_table(methods, by), *equal_time(methods, by), *fronts(methods, by)]
    lines += [
        f"Curves are the first worker's training loss, means over {WINDOW} steps, which hold whole rounds. Between "
        "exchanges of an outer step the weights are the worker's own, so that the curve is not that of the model which "
        "is tested: that has the global parameters, which the outer optimizer moves.",
        "",
        *(line for name in figures for line in (f"![{name.removesuffix('.svg')}]({name})", "")),
    ]
    return "\n".join(lines)


def _settings_of(found: Sequence[Finding]) -> list[str]:
    """Lines with the setting in which each claim was made, or is judged, and what a run there would take."""
    claims = {each.claim.id: each.claim for each in found}.values()
    return [
        "Settings are the source's unless another is named. Where a claim is of larger models, a run of the smallest "
        f"of them has the source's tokens, or {AT} a parameter, on an A100 at 40 % of its peak:",
        "",
        *(f"- {each.text}: {each.setting}{_run_there(each)}" for each in claims),
        "",
    ]


def _run_there(claim: Claim) -> str:
    """How long the smallest run takes of which a claim is made; "" where the source names no size."""
    parameters = claim.least.get("parameters")
    if parameters is None:
        return ""
    seen = claim.least.get("tokens", AT * parameters)
    minutes = 6 * parameters * seen / NAMED_FLOPS / 60
    return (
        f"; a run of {parameters / 1e6:,.0f}M parameters and {seen / 1e9:,.3g} billion tokens takes {in_words(minutes)}"
    )


def _setting(task: Task, every: Sequence[MethodRuns]) -> list[str]:
    methods = [each for each in every if each.label not in OTHER_DENSE] or every
    shorter, larger = ([each.label for each in every if each.label in those] for those in (SHORTER, LARGER))
    share = f"; {', '.join(shorter)}: that share of the samples" if shorter else ""
    batch = f"; {', '.join(larger)}: so many batches add up to one" if larger else ""
    usual, machines = shared(methods), dict.fromkeys(run.machine for run in runs_of(methods))
    steps = max(map(steps_of, runs_of(methods)))
    more = laid_over(runs_of(methods), task)
    told = f"All runs have {' '.join(more)}. " if more else ""
    size = ", ".join(f"{key} {usual[key]}" for key in ("depth", "width") if usual.get(key))
    return [
        f"{usual.get('model')}{f' ({size})' if size else ''} with {methods[0].runs[0].record['parameters']:,} "
        f"parameters on {usual.get('data')}, {usual.get('workers')} virtual workers of {usual.get('batch size')} "
        f"samples, {steps} steps{share}{batch}. The loss is that of the test "
        "set at the end of the run, in nats; after its sign, the standard deviation over seeds. Bytes are "
        "those that a worker sends, and a learning rate is the largest of the run. "
        f"{told}Made by `wirebench "
        f"study accuracy run` on {', '.join(machines)}; {methods[0].label} by "
        f"`{methods[0].runs[0].note['launch']}`.",
        "",
    ]


def _cells(method: MethodRuns, dense: MethodRuns | None, compared: Comparison | None) -> list[str]:
    return [
        method.title,
        str(len(method.runs)),
        tokens(method.runs),
        spread(losses(method)),
        cells.over(method, dense, 3),
        "-" if compared is None else compared.words,
        _metric(method),
        cells.sent(method),
        cells.fewer(method, dense),
        cells.rates(method),
    ]


def _metric(method: MethodRuns) -> str:
    bits = method.each(lambda run: run.has("final", "bits_per_byte"))
    if bits:
        return f"{statistics.mean(bits):.3f} bits per byte"
    return f"{100 * statistics.mean(method.top1):.1f} % top-1" if method.top1 else "-"
