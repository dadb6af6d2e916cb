"""The verdicts on all claims, as results/README.md has them between two markers: a figure and a table."""

import os
from collections.abc import Sequence
from pathlib import Path

from papers.claim import STATES
from papers.site.content import BROKEN, Section, counted
from wirebench.figures import colours
from wirebench.figures.bars import Bar, Look, stacked
from wirebench.figures.style import Figure, around, finished
from wirebench.utils.markdown import replaced, table

FILE = "results/README.md"
BEGIN, END = "<!-- verdicts:begin -->", "<!-- verdicts:end -->"
FIGURE = "verdicts.svg"
"""Beside the file."""
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


def text(sections: Sequence[Section], readme: Path) -> str:
    """The file with the sections' verdicts; UserError where it has no markers."""
    lines = [
        f"![Claims of the papers by verdict]({FIGURE})",
        "",
        *_verdicts(sections, readme.resolve().parent),
        "`make site` builds the pages that have every claim with its records, every table and every chart.",
    ]
    return replaced(readme, "\n".join(lines), BEGIN, END)


def _verdicts(sections: Sequence[Section], beside: Path) -> list[str]:
    """A line for each paper, with how many of its claims have each verdict; its name leads to its first table."""
    rows, papers = [], [section for section in sections if section.is_paper]
    for section in papers:
        counts = counted([section], papers=True)
        there = [os.path.relpath(page.path.resolve(), beside) for page in section.pages[:1]]
        name = f"[{section.name}]({there[0]})" if there else section.name
        rows.append([name, *(counts[state].cell if state in counts else "-" for state in STATES)])
    broken = any(count.broken for count in counted(papers, papers=True).values())
    rules = [f"In brackets: how many of these are {BROKEN} of trust; the table of claims names the rules.", ""]
    return [*table(("claims of", *STATES), rows), *(rules if broken else [])]


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
