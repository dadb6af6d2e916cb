"""What MkDocs builds the site of: the repository's Markdown, and tables and charts that are made of records.

mkdocs.yml names this file. Pages keep their paths in the repository, so that their links to each other hold. A file
that a page links to and that is no page is a part of the site as it is. An image that the studies draw becomes a chart.
"""

import functools
import html
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import vl_convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from papers.runner import RESULTS, ROOT
from papers.site import content, pages, readme
from papers.site.committed import benchmark_figures
from papers.site.content import Section
from wirebench.figures.colours import ON_DARK
from wirebench.figures.files import VEGA_LITE, specification
from wirebench.figures.style import Figure, panels_of

OWN = ("*.md", "docs/*.md", "examples/*.md", "results/**/README.md")
"""The repository's pages."""
ALONE = ("README.md", pages.CLAIMS)
"""Pages without others beside them in their part of the navigation."""
LINK = re.compile(r"(!?)\[[^][]*\]\(([^)#\s]+)")
IMAGE = re.compile(r"!\[([^]]*)\]\(([^)\s]+)\)")
NAMED_BLOCK = re.compile(r"^```(\w+) (\S+)$", re.MULTILINE)
"""A block of code with the name of its file, as CONTRIBUTING.md has them."""
EXPOSED = "window.vegaEmbed = vegaEmbed;"
VEGA = "vega.js"

sections = functools.cache(content.gather)
"""Made once, which takes half a minute, also where `mkdocs serve` builds the site again."""


def on_config(config: MkDocsConfig) -> None:
    """Add the studies to the navigation."""
    assert config.nav is not None, "mkdocs.yml has one"
    config.nav.append({"Studies": [{each.name: [*_below(each)]} for each in sections()]})


def _below(section: Section) -> Iterator[str | dict[str, str]]:
    yield pages.study_page(section)
    for page in section.pages:
        yield {_short(page.folder): _uri(page.path)}


def _short(folder: Path) -> str:
    """What the navigation calls a table: its folder."""
    return folder.relative_to(RESULTS).name


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages, and the files that they link to."""
    texts = dict(_pages())
    for uri, text in texts.items():
        files.append(File.generated(config, uri, content=text))
    linked = {each for uri, text in texts.items() for each in _linked(uri, text)}
    for uri in sorted(linked - texts.keys()):
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / uri)))
    files.append(File.generated(config, VEGA, content=vl_convert.javascript_bundle(EXPOSED, vl_version=VEGA_LITE)))
    files.append(File.generated(config, "on-dark.js", content=f"const onDark = {json.dumps(ON_DARK)};"))


def _pages() -> Iterator[tuple[str, str]]:
    """Addresses and texts of all pages."""
    for pattern in OWN:
        for path in sorted(ROOT.glob(pattern)):
            yield _uri(path), path.read_text(encoding="utf-8")
    for section in sections():
        yield pages.study_page(section), pages.study(section)
        for page in section.pages:
            yield _uri(page.path), page.text
    yield pages.CLAIMS, pages.claims(sections())
    yield pages.RECORDS, pages.records(sections())


def _uri(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _linked(uri: str, text: str) -> Iterator[str]:
    """The files that a page links to, but for images that become charts."""
    folder = (ROOT / uri).parent
    for image, target in LINK.findall(text):
        path = Path(os.path.normpath(folder / target))
        if path.is_file() and path.is_relative_to(ROOT) and not (image and path in charts()):
            yield _uri(path)


@functools.cache
def charts() -> dict[Path, Figure]:
    """Every figure that is made of records, by the path of its image."""
    every: dict[Path, Figure | None] = dict(benchmark_figures(RESULTS))
    for section in sections():
        for page in section.pages:
            every |= {page.folder / name: figure for name, figure in page.figures.items()}
    every[RESULTS / readme.FIGURE] = readme.verdicts(sections())
    return {path: figure for path, figure in every.items() if figure is not None}


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Put charts in place of images, and a block's file into its title."""
    if page.file.src_uri in ALONE:
        page.meta["hide"] = ["navigation", "toc"]
    folder = (ROOT / page.file.src_uri).parent

    def chart(found: re.Match[str]) -> str:
        figure = charts().get(Path(os.path.normpath(folder / found[2])))
        return found[0] if figure is None else f"\n\n{html_of(figure, found[1])}\n\n"

    return NAMED_BLOCK.sub(r'```\1 title="\2"', IMAGE.sub(chart, markdown))


def html_of(figure: Figure, caption: str) -> str:
    """A figure as assets/site.js draws it: a place for each panel, and the panel's specification behind it."""
    title = specification(figure).get("title", {})
    parts = panels_of(figure)
    heading = f"<b>{_joined(title.get('text', ''))}</b> {_joined(title.get('subtitle', ''))}" if len(parts) > 1 else ""
    place = f'<div class="chart" role="img" aria-label="{html.escape(caption)}"></div>'
    drawn = "".join(f'{place}<script type="application/json">{_json(part)}</script>' for part in parts)
    said = f"<figcaption>{heading or html.escape(caption)}</figcaption>"
    return f'<figure class="charts">{said}<div class="panels">{drawn}</div></figure>'


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else " ".join(text)


def _json(part: Figure) -> str:
    """The specification, which cannot end the script that holds it."""
    return json.dumps(specification(part), separators=(",", ":")).replace("<", "\\u003c")
