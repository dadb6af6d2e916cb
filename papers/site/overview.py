"""The figure of results/README.md: each paper's claims by verdict."""

from collections.abc import Sequence

from papers.site.content import BROKEN, Section, counted
from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.style import Figure, around, finished

COLOURS = {
    "reproduced": colours.GREEN,
    "direction reproduced": colours.SKY,
    "not decidable": colours.GREY,
    "not reproduced": colours.VERMILLION,
    "contradicted": colours.PINK,
    "other setting": colours.ORANGE,
    "not run here": colours.PALE,
}
"""Colours of the verdicts."""


def verdicts(sections: Sequence[Section]) -> Figure:
    """A bar for each paper: how many of its claims have each verdict."""
    bars = []
    for section in sections:
        if section.is_paper:
            parts: dict[str, float] = {
                state: float(count.claims) for state, count in counted([section], papers=True).items()
            }
            bars.append(Bar(section.name, parts, words=f"{sum(parts.values()):.0f}"))
    across = around("claims", [0.0, *(bar.total for bar in bars)])
    broken = sum(count.broken for count in counted(sections, papers=True).values())
    those = f", {broken} of them {BROKEN}" if broken else ""
    note = f"{sum(bar.total for bar in bars):.0f} claims{those}; each with its records on the site (make site)"
    return finished(stacked(bars, across, Look(COLOURS, legend_columns=3), "Claims of the papers by verdict", note))
