"""The verdicts on all claims, as results/README.md has them between two markers: a figure and a table."""

import os
from collections.abc import Sequence
from pathlib import Path

from papers.claim import STATES
from papers.webpage.content import BROKEN, Section, counted
from papers.webpage.prose import slug
from wirebench.utils.markdown import replaced, table

FILE = "results/README.md"
BEGIN, END = "<!-- verdicts:begin -->", "<!-- verdicts:end -->"
FIGURE = "verdicts.png"
"""Beside the page."""


def text(sections: Sequence[Section], readme: Path, page: Path) -> str:
    """The file with the sections' verdicts; UserError where it has no markers.

    page  the HTML file, which is linked
    """
    beside, figure = _from(readme, page), _from(readme, page.with_name(FIGURE))
    lines = [
        f"![Claims of the papers by verdict]({figure})",
        "",
        *_verdicts(sections, beside),
        f"[{beside}]({beside}) has every claim with its records, every table and every chart.",
    ]
    return replaced(readme, "\n".join(lines), BEGIN, END)


def _verdicts(sections: Sequence[Section], beside: str) -> list[str]:
    """A line for each paper, with how many of its claims have each verdict."""
    rows, papers = [], [section for section in sections if section.is_paper]
    for section in papers:
        counts = counted([section], papers=True)
        name = f"[{section.name}]({beside}#study-{slug(section.name)})"
        rows.append([name, *(counts[state].cell if state in counts else "-" for state in STATES)])
    broken = any(count.broken for count in counted(papers, papers=True).values())
    rules = [f"In brackets: how many of these are {BROKEN} of trust; the page names the rules.", ""]
    return [*table(("claims of", *STATES), rows), *(rules if broken else [])]


def _from(readme: Path, path: Path) -> str:
    """A file as a link in the page."""
    return os.path.relpath(path.resolve(), readme.resolve().parent)
