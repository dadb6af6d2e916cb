"""The claims of the FlexReduce paper (section V), each with a verdict on what was measured here, and its records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from papers import benchmarks
from papers.claim import MISSED, Claim, Verdict, together
from papers.estimate import Estimate, mean_of
from papers.findings import Finding, of_rows
from papers.flexreduce import measured as numbers
from papers.flexreduce.measured import CLAIMS, LAYOUTS, TRAININGS, Latencies, TrainingRow, ideal_saving, is_even
from papers.rows import Row, grouped
from papers.significance import LEVEL
from wirebench.record import recorded
from wirebench.record.notes import NotedRun

EVEN, UNEVEN = (tuple(layout for layout in LAYOUTS if is_even(layout) is each) for each in (True, False))
"""Layouts that can be factored, and layouts that cannot."""


def claims(measured: Sequence[Latencies], runs: Sequence[TrainingRow]) -> list[Finding]:
    """The paper's claims in its order; all-reduces are judged at each size of the paper's range that was measured."""
    least = min(numbers.SMALL_ITEMS, numbers.main_items(measured))
    chosen = [row for row in measured if row.items >= least]
    layouts = dict.fromkeys(row.layout for row in measured)
    counts = {layout: numbers.count_calls(layout) for layout in LAYOUTS}
    return [
        *(_saving(chosen, CLAIMS[name]) for name in ("saving_2_machines", "saving_3_machines")),
        _largest(CLAIMS["headline"], chosen),
        _each(CLAIMS["of_ideal"], {_place(row, chosen): row.of_ideal_speed for row in chosen}, percent, wanted=LAYOUTS),
        _ratio(CLAIMS["blueconnect_even"], [row for row in chosen if is_even(row.layout)], "flexreduce", EVEN),
        _ratio(CLAIMS["blueconnect_uneven"], [row for row in chosen if not is_even(row.layout)], "ring", UNEVEN),
        _ratio(CLAIMS["wins_on_uneven"], [row for row in chosen if not is_even(row.layout)], "flexreduce", UNEVEN),
        _ratio(CLAIMS["wins_on_9"], _on(chosen, CLAIMS["wins_on_9"]), "flexreduce"),
        *(
            _by_size(CLAIMS[name], _on(measured, CLAIMS[name]))
            for name in ("as_the_ring_on_10", "as_blueconnect_on_12")
        ),
        _each(CLAIMS["linear"], {layout: numbers.time_per_item(measured, layout, "flexreduce") for layout in layouts}),
        # Counted from the plans of all nine layouts: nothing needs to be measured.
        _each(CLAIMS["mean_calls"], {layout: count.mean for layout, count in counts.items()}),
        _each(CLAIMS["bound_on_calls"], {layout: float(count.bound) for layout, count in counts.items()}),
        _average(CLAIMS["epoch_over_ring"], _epochs(runs, LAYOUTS, "flexreduce", "ring"), LAYOUTS),
        _average(CLAIMS["epoch_over_native"], _epochs(runs, LAYOUTS, "flexreduce", "native"), LAYOUTS),
        _average(CLAIMS["epoch_blueconnect_adds"], _added(runs), UNEVEN),
    ]


def percent(share: float) -> str:
    """A share for people."""
    return f"{tenths(share)} %"


def tenths(share: float) -> str:
    """A share in percent without the sign; what rounds to nothing has no minus."""
    return f"{round(100 * share, 1) + 0.0:.1f}"


def whole(share: float) -> str:
    """A share that the paper gives in whole percent."""
    return f"{100 * share:.0f} %"


def _number(value: float) -> str:
    return f"{value:.3g}"


def _finding(
    claim: Claim,
    figure: str,
    values: Mapping[str, float],
    form: Callable[[float], str],
    verdicts: Mapping[str, Verdict],
    of: str = "layouts",
    wanted: Sequence[str] = (),
) -> Finding:
    """`values` and `verdicts` by layout, or what else `of` names; the claim holds where it does on all of them.

    wanted  the layouts that the claim is about: where one is missing it may be missed, and is not borne out
    """
    if not values:
        return Finding(claim, "-", together(verdicts, claim.contradicted), figure=figure)
    verdict = together(verdicts, claim.contradicted)
    missing = [layout for layout in wanted if layout not in {name.partition(" at ")[0] for name in values}]
    if missing and verdict.state not in MISSED:
        verdict = _partly(claim, missing, wanted)
    ends = dict.fromkeys((form(min(values.values())), form(max(values.values()))))
    measured = f"{' to '.join(ends)} ({', '.join(values) if len(values) < 3 else f'{_counted(values, of)}'})"
    return Finding(claim, measured, verdict, figure=figure)


def _counted(values: Mapping[str, float], of: str) -> str:
    """How many layouts, and sizes of each, or what else they are."""
    layouts = {name.partition(" at ")[0] for name in values}
    return f"{len(values)} {of}" if len(layouts) == len(values) else f"{len(values)} pairs of a layout and a size"


def _each(
    claim: Claim,
    values: Mapping[str, float | Estimate | None],
    form: Callable[[float], str] = _number,
    of: str = "layouts",
    wanted: Sequence[str] = (),
) -> Finding:
    """`values` by layout, or what else `of` names."""
    known = {layout: value for layout, value in values.items() if value is not None}
    middles = {layout: value.value if isinstance(value, Estimate) else value for layout, value in known.items()}
    figure = claim.shown or " to ".join(map(whole, claim.number))
    return _finding(claim, figure, middles, form, claim.judge_each(known), of, wanted)


def _saving(chosen: Sequence[Latencies], claim: Claim) -> Finding:
    machines = claim.about["machines"]
    here = {_place(row, chosen): row for row in chosen if len(row.topology.machines) == machines}
    values = {place: saving for place, row in here.items() if (saving := row.saving("flexreduce", "ring"))}
    ideals = [ideal_saving(layout) for layout in LAYOUTS if layout.count("+") == machines - 1]
    figure = " to ".join(map(whole, claim.number)) + f"; ideal {percent(min(ideals))} to {percent(max(ideals))}"
    verdicts = claim.judge_each(values, {place: row.ideal for place, row in here.items()})
    wanted = [layout for layout in LAYOUTS if layout.count("+") == machines - 1]
    middles = {place: saving.value for place, saving in values.items()}
    return _finding(claim, figure, middles, percent, verdicts, wanted=wanted)


def _largest(claim: Claim, chosen: Sequence[Latencies]) -> Finding:
    """The largest saving over the ring that the links allow, and on which layout it is: what is beyond is noise.

    The largest of several is partly luck: its interval covers the whole family.
    """
    possible = [row for row in chosen if (row.reached or 0.0) <= 1 + numbers.tolerance(row.topology)]
    savings = {_place(row, chosen): saving for row in possible if (saving := row.saving("flexreduce", "ring"))}
    missing = [layout for layout in LAYOUTS if layout not in {row.layout for row in chosen}]
    if not savings or missing:
        return _finding(claim, claim.shown, {}, percent, {"": _partly(claim, missing, LAYOUTS)} if savings else {})
    place, most = max(savings.items(), key=lambda each: each[1].value)
    verdict = claim.judge(most, level=LEVEL / len(savings))
    return _finding(claim, claim.shown, {place: most.value}, percent, {place: verdict})


def _on(rows: Sequence[Latencies], claim: Claim) -> list[Latencies]:
    return [row for row in rows if row.layout == claim.about["layout"]]


def _ratio(claim: Claim, chosen: Sequence[Latencies], rival: str, wanted: Sequence[str] = ()) -> Finding:
    """BlueConnect's time over the rival's, by layout and size."""
    ratios = {_place(row, chosen): row.ratio("blueconnect", rival) for row in chosen}
    return _each(claim, ratios, wanted=wanted)


def _place(row: Latencies, among: Sequence[Latencies]) -> str:
    """What a table calls the row: its layout, with its size where there are several."""
    several = len({each.items for each in among}) > 1
    return f"{row.layout} at {row.items:,} floats" if several else row.layout


def _by_size(claim: Claim, chosen: Sequence[Latencies]) -> Finding:
    """The same on one layout, by size: from 120,000 floats on, below which a round waits longer than it sends."""
    those = [row for row in chosen if row.items >= numbers.SMALL_ITEMS]
    ratios = {f"{row.items:,} floats": row.ratio("blueconnect", claim.about["over"]) for row in those}
    return _each(claim, ratios, of="sizes")


def _epochs(runs: Sequence[TrainingRow], layouts: Sequence[str], one: str, other: str) -> dict[str, Estimate]:
    """The share of `other`'s time per epoch that `one` saves, by layout, over turns."""
    savings = {layout: numbers.faster(runs, layout, one, other) for layout in layouts}
    return {layout: saving for layout, saving in savings.items() if saving}


def _added(runs: Sequence[TrainingRow]) -> dict[str, Estimate]:
    saved = _epochs(runs, UNEVEN, "blueconnect", "ring")
    return {layout: saving.mapped(lambda share: -share) for layout, saving in saved.items()}


def _average(claim: Claim, values: Mapping[str, Estimate], wanted: Sequence[str]) -> Finding:
    """The paper gives one average over its layouts: savings differ from one to the other, so it takes all of them.

    wanted  the paper's
    """
    if not values:
        return _finding(claim, on_average(claim), {}, percent, {})
    average, missing = mean_of(list(values.values())), [layout for layout in wanted if layout not in values]
    verdict = _partly(claim, missing, wanted) if missing else claim.judge(average)
    here = f"{average.percent()} ({', '.join(values)})"
    return Finding(claim, here, verdict, figure=on_average(claim))


def _partly(claim: Claim, missing: Sequence[str], wanted: Sequence[str]) -> Verdict:
    """Verdict on a claim about several layouts together, not all of which ran."""
    without = f"on {len(wanted) - len(missing)} of {len(wanted)} layouts, without {', '.join(missing)}"
    return claim.judge(None)._replace(why=without)


def on_average(claim: Claim) -> str:
    """The paper's figure."""
    return f"{percent(claim.number[0])} on average"


TRAINING = "wirebench study flexreduce run --end-to-end --link 400mbit"


def with_evidence(folder: Path, found: Finding) -> Finding:
    """The finding with what it rests on: trainings, or cells; calls are counted from plans, which need no run."""
    if found.claim.unit == "calls":
        return found
    if found.claim.id.startswith("epoch_"):
        trained = [Row(str(path), runs) for path, runs in _trainings(folder).items()]
        return of_rows(found.claim, found.here, found.verdict, trained, figure=found.figure, command=TRAINING)
    files = [file for layout in LAYOUTS if (file := folder / "cells" / f"{layout}.jsonl").exists()]
    rules = dict.fromkeys(rule for file in files for rule in benchmarks.rules(file))
    return replace(found, records=tuple(files), rules=tuple(rules))


def _trainings(folder: Path) -> dict[Path, tuple[NotedRun, ...]]:
    """By layout and collective, as the folder of the first turn is called without its number."""
    return grouped(recorded.below(folder / TRAININGS), lambda run: run.folder.with_name(run.composition))
