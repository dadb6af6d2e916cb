"""The claims of the FlexReduce paper (section V), each with a verdict on what was measured here."""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from wirebench import paper_flexreduce as paper
from wirebench.paper_flexreduce import LAYOUTS, REACHED, Row, Training, ideal_saving, is_even, judged


class Claim(NamedTuple):
    """What the paper says, its figure, ours, and whether ours reaches it."""

    text: str
    paper: str
    measured: str
    verdict: str


def claims(measured: Sequence[Row], runs: Sequence[Training]) -> list[Claim]:
    """The paper's claims in its order; all-reduces are judged at `paper_flexreduce.main_items`."""
    items = paper.main_items(measured)
    chosen = [row for row in measured if row.items == items]
    return [
        *(_saving(chosen, machines) for machines in paper.PAPER_SAVING),
        _of_ideal(chosen),
        _blueconnect_even(chosen),
        _blueconnect_uneven(chosen),
        _linear(measured),
        *_calls(),
        _training_faster(runs, "ring"),
        _training_faster(runs, "native"),
        _blueconnect_slower(runs),
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


def _claim(
    text: str, figure: str, values: Mapping[str, float], form: Callable[[float], str], passing: Collection[str]
) -> Claim:
    """`values` by layout; the claim holds where all are `passing`, else the verdict names those that are not."""
    if not values:
        return Claim(text, figure, "-", paper.NOT_MEASURED)
    ends = dict.fromkeys((form(min(values.values())), form(max(values.values()))))
    failing = [layout for layout in values if layout not in passing]
    where = f" ({', '.join(failing)})" if failing and len(values) > 1 else ""
    measured = f"{' to '.join(ends)} ({', '.join(values) if len(values) < 3 else f'{len(values)} layouts'})"
    return Claim(text, figure, measured, judged(not failing) + where)


def _saving(chosen: Sequence[Row], machines: int) -> Claim:
    low, high = paper.PAPER_SAVING[machines]
    here = [row for row in chosen if len(row.topology.machines) == machines]
    values = {row.layout: saving.median for row in here if (saving := row.saving("flexreduce", "ring"))}
    passing = {row.layout for row in here if row.reached is not None and row.reached >= REACHED}
    ideals = [ideal_saving(layout) for layout in LAYOUTS if layout.count("+") == machines - 1]
    figure = f"{whole(low)} to {whole(high)}; ideal {percent(min(ideals))} to {percent(max(ideals))}"
    text = f"latency that FlexReduce saves over the ring, {machines} machines ({whole(REACHED)} of the ideal needed)"
    return _claim(text, figure, values, percent, passing)


def _of_ideal(chosen: Sequence[Row]) -> Claim:
    least, most = paper.PAPER_OF_IDEAL
    values = {row.layout: row.of_ideal_speed for row in chosen if row.of_ideal_speed is not None}
    passing = {layout for layout, share in values.items() if share >= least}
    return _claim("ideal latency over FlexReduce's", f"{whole(least)} to {whole(most)}", values, percent, passing)


def _blueconnect_even(chosen: Sequence[Row]) -> Claim:
    even = [row for row in chosen if is_even(row.layout)]
    values = {row.layout: ratio.median for row in even if (ratio := row.ratio("blueconnect", "flexreduce"))}
    passing = {layout for layout, ratio in values.items() if ratio >= REACHED}
    return _claim("BlueConnect's latency over FlexReduce's, even layouts", "1 or more", values, _number, passing)


def _blueconnect_uneven(chosen: Sequence[Row]) -> Claim:
    uneven = [row for row in chosen if not is_even(row.layout)]
    values = {row.layout: ratio.median for row in uneven if (ratio := row.ratio("blueconnect", "ring"))}
    passing = {layout for layout, ratio in values.items() if abs(ratio - 1) <= 1 - REACHED}
    text = "BlueConnect's latency over the ring's, uneven layouts"
    return _claim(text, "about 1: it falls back to the ring", values, _number, passing)


def _linear(measured: Sequence[Row]) -> Claim:
    layouts = dict.fromkeys(row.layout for row in measured)
    ratios = {layout: paper.time_per_item(measured, layout, "flexreduce") for layout in layouts}
    values = {layout: ratio for layout, ratio in ratios.items() if ratio is not None}
    passing = {layout for layout, ratio in values.items() if abs(ratio - 1) <= 1 - REACHED}
    text = "latency is linear in items: FlexReduce's time per item at the largest size over that at the one before"
    return _claim(text, "1", values, _number, passing)


def _calls() -> list[Claim]:
    """Counted from the plans of all nine layouts; nothing needs to be measured."""
    counts = {layout: paper.count_calls(layout) for layout in LAYOUTS}
    means = {layout: count.mean for layout, count in counts.items()}
    bounds = {layout: float(count.bound) for layout, count in counts.items()}
    return [
        _claim(
            "reduce calls per learner, mean over levels",
            f"at most {paper.PAPER_MEAN_CALLS:g}",
            means,
            _number,
            {layout for layout, mean in means.items() if mean <= paper.PAPER_MEAN_CALLS},
        ),
        _claim(
            "upper bound on a learner's reduce calls (Eq. 12, root level)",
            " or ".join(map(str, paper.PAPER_BOUNDS)),
            bounds,
            _number,
            {layout for layout, bound in bounds.items() if bound in paper.PAPER_BOUNDS},
        ),
    ]


def _training_faster(runs: Sequence[Training], other: str) -> Claim:
    savings = {layout: paper.faster(runs, layout, "flexreduce", other) for layout in LAYOUTS}
    text = f"time per epoch that FlexReduce saves over {'the ring' if other == 'ring' else 'the native all-reduce'}"
    return _average(text, paper.PAPER_FASTER, {name: saving.median for name, saving in savings.items() if saving})


def _blueconnect_slower(runs: Sequence[Training]) -> Claim:
    uneven = [layout for layout in LAYOUTS if not is_even(layout)]
    savings = {layout: paper.faster(runs, layout, "blueconnect", "ring") for layout in uneven}
    text = "time per epoch that BlueConnect adds to the ring's, uneven layouts (the paper's cause: more GPU kernels)"
    values = {name: -saving.median for name, saving in savings.items() if saving}
    return _average(text, paper.PAPER_BLUECONNECT_SLOWER, values)


def _average(text: str, figure: float, values: Mapping[str, float]) -> Claim:
    """The paper gives one average over its layouts; ours is over those measured."""
    name = ", ".join(values)
    means = {name: statistics.mean(values.values())} if values else {}
    passing = [name for name, mean in means.items() if mean >= REACHED * figure]
    return _claim(text, f"{percent(figure)} on average", means, percent, passing)
