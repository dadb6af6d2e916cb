"""The HTML file: one document that needs nothing else, the same to the byte for the same records."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from papers.committed import EXCEPTIONS, excuses
from papers.page import Page
from papers.runner import RESULTS
from papers.webpage import charts, energy, overview, prose
from papers.webpage.content import MACHINE_HEAD, Judged, Section, counted, flagged, machines
from wirebench.errors import UserError
from wirebench.figures.colours import ON_DARK
from wirebench.figures.files import VEGA_LITE, specification
from wirebench.figures.style import Figure as Chart
from wirebench.utils.files import write_atomically

HERE = Path(__file__).parent
EXPOSED = "window.vegaEmbed = vegaEmbed;"


@dataclass(frozen=True)
class Figure:
    """A figure as the template needs it; panels have a title, a note and a specification."""

    id: str
    title: str
    subtitle: str
    panels: Sequence[tuple[str, str, Markup]]


def write(sections: Sequence[Section], path: Path) -> None:
    """Write the page; UserError where it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, html(sections, path.parent).encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error


def html(sections: Sequence[Section], beside: Path) -> str:
    """The whole document.

    beside  folder that it will lie in, from which its links to records and documents lead
    """
    environment = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(inline=lambda text: Markup(prose.inline(text)))
    return environment.get_template("template.html").render(
        sections=sections,
        papers=[section for section in sections if section.is_paper],
        counted=counted(sections, papers=True),
        states=counted(sections),
        machines=(MACHINE_HEAD, machines(sections)),
        energy=(energy.HEAD, energy.lines(RESULTS, beside)),
        excused=excuses(RESULTS / EXCEPTIONS),
        flagged=[(*_link(path, beside), said) for path, said in flagged(sections)],
        command=command,
        slug=prose.slug,
        anchor=prose.anchor,
        body=lambda page: Markup(prose.html_of(page, beside)),
        overview=_figure("verdicts", overview.verdicts(sections)),
        figures=lambda page: list(_figures(page)),
        links=lambda judged: list(_links(judged, beside)),
        style=Markup((HERE / "style.css").read_text(encoding="utf-8")),
        script=Markup((HERE / "page.js").read_text(encoding="utf-8")),
        on_dark=Markup(charts.script(dict(ON_DARK))),
        vega=Markup(_vega()),
    )


@lru_cache
def _vega() -> str:
    """The library that draws the charts: it takes longer to bundle than the rest of the page."""
    return vl_convert.javascript_bundle(EXPOSED, vl_version=VEGA_LITE).replace("</script", "<\\/script")


def _figures(page: Page) -> Iterator[Figure]:
    for name, chart in page.figures.items():
        if chart is not None:
            yield _figure(prose.figure_id(page, name), chart)


def _figure(anchor: str, chart: Chart) -> Figure:
    spec = specification(chart)
    title, subtitle = charts.heading(spec)
    one = charts.is_one(spec)
    panels = [
        ("" if one else part.title, "" if one else part.subtitle, Markup(charts.script(part.spec)))
        for part in charts.panels(spec)
    ]
    return Figure(anchor, title, subtitle, panels)


def _links(judged: Judged, beside: Path) -> Iterator[tuple[str, str]]:
    """The records that a claim's findings rest on: what each is called, and where it is."""
    records = dict.fromkeys(record for each in judged.findings for record in each.records)
    for record in records:
        yield _link(record, beside)


def _link(record: Path, beside: Path) -> tuple[str, str]:
    """What a record, or the folder of a run, is called, and where the file is."""
    file = record / "record.json" if record.is_dir() else record
    named = record.parent if record.name == "record.json" else record
    return "/".join(named.parts[-2:]), os.path.relpath(file.resolve(), beside.resolve())


def command(section: Section, judged: Judged) -> str:
    """What measures a claim, or computes it where no record is needed."""
    own = next((each.command for each in judged.findings if each.command), "")
    there = judged.claim.cluster if judged.state == "not run here" else ""
    told = judged.claim.command or own or there
    computed = judged.state != "not run here" and not any(each.records for each in judged.findings)
    return told or f"wirebench study {section.name} {'report' if computed else 'run'}"
