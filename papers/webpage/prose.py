"""A table.md as HTML: headings that can be linked to, tables that can be sorted, and charts in place of its images."""

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from papers.page import Page

DEEPER = 2
"""Levels by which a table's headings lie below the page's own."""
EMPTY_SECTION = re.compile(r"<h(\d)[^>]*>[^<]*</h\1>\n(?=<h\1|$)")
"""A heading with no text before the next one of its level, or the end."""
OUTSIDE = re.compile(r"[a-z]+:|#")
"""Links that lead out of the repository, or stay on the page."""


def slug(text: str) -> str:
    """An anchor: lower-case words and digits, joined by hyphens."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))


def anchor(folder: Path) -> str:
    """Anchor of the table and its figures in a folder: its name with its parent's."""
    return slug(" ".join(folder.parts[-2:]))


def figure_id(page: Page, name: str) -> str:
    """Id of one of the page's figures."""
    return f"{anchor(page.folder)}-{slug(Path(name).stem)}"


def inline(text: str) -> str:
    """A cell of a table: code and links, no blocks."""
    return str(_markdown().renderInline(text))


def html_of(page: Page, beside: Path) -> str:
    """The text of a table.md, without its images, which the page replaces by its charts.

    beside  folder of the HTML file: links are made relative to it
    """
    markdown = _markdown()
    tokens = markdown.parse(page.text)
    for token in _walk(tokens):
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + DEEPER, 6)}"
        elif token.type == "link_open":
            token.attrSet("href", _relative(str(token.attrGet("href")), page.folder, beside))
        elif token.type == "image":
            # Charts stand below the text, where there is room for them.
            token.type, token.tag, token.content, token.children = "text", "", "", None
    _name_headings(tokens, anchor(page.folder))
    text = str(markdown.renderer.render(tokens, markdown.options, {}))
    wide = text.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    # A section of images alone has nothing left.
    return EMPTY_SECTION.sub("", re.sub(r"<p>\s*</p>\n?", "", wide))


def _markdown() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _walk(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _walk(token.children or ())


def _name_headings(tokens: Sequence[Token], prefix: str) -> None:
    """Give every heading an anchor; the first one is the table's own."""
    used: set[str] = set()
    for token, text in itertools.pairwise(tokens):
        if token.type == "heading_open":
            name = f"{prefix}-{slug(text.content)}" if used else prefix
            while name in used:
                name += "-again"
            used.add(name)
            token.attrSet("id", name)


def _relative(href: str, folder: Path, beside: Path) -> str:
    if OUTSIDE.match(href):
        return href
    path, mark, fragment = href.partition("#")
    return os.path.relpath((folder / path).resolve(), beside.resolve()) + mark + fragment
