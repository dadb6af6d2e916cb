"""The figure of `wirebench advise`: a bar for every composition.

Imported where a figure is asked for: what draws it takes long to import.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.files import save
from wirebench.figures.provenance import computed
from wirebench.figures.style import Figure, around, finished
from wirebench.planner.accuracy import ELSEWHERE, OTHERWISE
from wirebench.planner.candidate import Candidate
from wirebench.planner.compositions import DENSE
from wirebench.planner.render import Ranking, ShownSetting, images_range
from wirebench.telemetry import environment

COMPUTING, EXCHANGE, REFUSED = "computing", "exchange that is not hidden", "the same, of a method not recommended"
PARTS = {COMPUTING: colours.PALE, EXCHANGE: colours.BLUE, REFUSED: colours.SKY}


def draw(setting: ShownSetting, ranking: Ranking, shown: Sequence[Candidate], path: Path) -> None:
    """Write the figure; UserError where it cannot be written."""
    save(figure(setting, ranking, shown, environment.git()), path)


def figure(
    setting: ShownSetting, ranking: Ranking, shown: Sequence[Candidate], git: Mapping[str, Any] | None
) -> Figure:
    """A bar for every composition: what computes, and what the exchange adds; pale for what is not recommended.

    git  the commit that simulates, as an environment has it
    """
    bars = []
    for each in shown:
        exchange = REFUSED if ranking.judge.reason(each) else EXCHANGE
        parts = {COMPUTING: 1e3 * each.found.alone, exchange: 1e3 * each.found.step.exposed}
        words = f"{images_range(each)}{', not recommended' * (exchange == REFUSED)}"
        between = each.between
        bars.append(Bar(_label(each, ranking), parts, (1e3 * between.low, 1e3 * between.high), words=words))
    across = around("time per step, ms", [0.0, *(bar.end for bar in bars)])
    dense = [_label(each, ranking) for each in shown if each.compressor == DENSE]
    used = {part for bar in bars for part in bar.parts}
    drawn = {part: colour for part, colour in PARTS.items() if part in used}
    measure = ranking.accuracies.measure
    points = f", and {measure.head}, {measure.told}, as measured ({ELSEWHERE}: {OTHERWISE})"
    note = (
        f"{setting.described}. Names: compressor, schedule, collective{points * bool(ranking.accuracies.known)}; dense "
        f"in bold. In the order of the table. At the ends: {setting.trace.unit}/s. Thin lines: ranges of a step, "
        f"by {ranking.errors.runs} measured runs. {computed(git, *_sources(setting))}."
    )
    look = Look(drawn, bold=dense, legend_columns=1, spread="range of the step")
    return finished(stacked(bars, across, look, "Compositions by time per step", note))


def _sources(setting: ShownSetting) -> list[str]:
    """What the numbers of a figure rest on."""
    return [
        f"the trace {setting.trace.name} ({setting.trace.made})",
        f"the network {setting.network}",
        f"compressors in memory of {setting.bytes_per_second / 1e9:.4g} GB/s ({setting.memory})",
    ]


def _label(each: Candidate, ranking: Ranking) -> str:
    ended = ranking.cell(each) if each.compressor != DENSE or each.local else ""
    return ", ".join(filter(None, (each.compressor, each.scheduler, each.collective, ended)))
