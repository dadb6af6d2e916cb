"""A report: table.md in the folder of its runs, figures beside it; written, printed, or compared with the old one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path

from papers.runner import within
from wirebench.errors import UserError
from wirebench.figures.files import save, shows
from wirebench.figures.style import Figure
from wirebench.record import recorded
from wirebench.utils import user_files
from wirebench.utils.files import write_atomically

TABLE = "table.md"
LONGEST = 90
"""Characters that are shown of a line that differs."""


@dataclass(frozen=True)
class Page:
    """A table as Markdown, its figures by file name (None: one of an earlier report goes), and a sentence about it.

    files  text files beside it, by name: the same numbers for programs
    leads  whether the study's finding stands at its top; None: where it is a report's first page. A page that one may
           ask for alone says it, so that its text does not depend on what else is asked for
    """

    folder: Path
    text: str
    figures: Mapping[str, Figure | None] = field(default_factory=dict)
    said: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    leads: bool | None = None

    def led_by(self, finding: str) -> "Page":
        """The page with a sentence and its first figure, if it has any, below its title; unchanged for ""."""
        if not finding:
            return self
        title, _, rest = self.text.partition("\n")
        figure = re.search(r"^!\[.*\]\(.*\)\n", rest, re.MULTILINE)
        shown = ["", figure[0].rstrip()] if figure else []
        if figure:
            rest = rest[: figure.start()] + rest[figure.end() :]
        return replace(self, text="\n".join([title, "", finding, *shown, rest]))

    @property
    def path(self) -> Path:
        """Path of the table."""
        return self.folder / TABLE

    def write(self) -> None:
        """Write table and figures; UserError where that cannot be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{self.folder}: cannot be written: {error.strerror}") from error
        user_files.write(self.path, self.text)
        for name, figure in self.figures.items():
            if figure is None:
                (self.folder / name).unlink(missing_ok=True)
            elif not shows(self.folder / name, figure):  # of the same chart every machine's fonts make another picture
                save(figure, self.folder / name)
        for name, text in self.files.items():
            write_atomically(self.folder / name, text)

    @property
    def words(self) -> str:
        """The text without its figures, for a terminal."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("![")).rstrip()

    def drift(self) -> str | None:
        """The first line in which the table on disk differs from this one, or a figure that is another; else None."""
        if not self.path.exists():
            return f"{within(self.path)}: is not there; run the study's report"
        written = user_files.read(self.path)
        if written == self.text:
            return self._other_figure() or self._other_file()
        lines = zip_longest(written.splitlines(), self.text.splitlines(), fillvalue="no line")
        differing = ((number, old, new) for number, (old, new) in enumerate(lines, 1) if old != new)
        number, old, new = next(differing, (len(written.splitlines()), "another end", "this end"))
        return f"{within(self.path)}:{number}: {_around(old, new)!r}, by its records {_around(new, old)!r}"

    def _other_figure(self) -> str | None:
        for name, figure in self.figures.items():
            path = self.folder / name
            if path.exists() if figure is None else not shows(path, figure):
                return f"{within(path)}: is not the figure of its records"
        return None

    def _other_file(self) -> str | None:
        for name, text in self.files.items():
            path = self.folder / name
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                return f"{within(path)}: has not the numbers of its records"
        return None


def _around(line: str, other: str) -> str:
    """The part of a long line in which it differs from the other."""
    same = next((at for at, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), min(len(line), len(other)))
    start = max(0, min(same - LONGEST // 3, len(line) - LONGEST))
    return line[start : start + LONGEST]


def tables_below(folder: Path) -> list[list[str]]:
    """A report's command line for every folder below `folder` that has a table or runs: the folder alone."""
    tables = {path.parent for path in folder.glob(f"*/{TABLE}")}
    return [[str(each)] for each in sorted(tables.union(recorded.series(folder)))]


@dataclass(frozen=True)
class Drawn:
    """Figures and their captions by file name; missing: why a figure was not drawn, by file name."""

    figures: dict[str, Figure | None] = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, caption: str, figure: Figure | str) -> None:
        """A figure, or the reason why there is none; then an older file of this name goes."""
        if isinstance(figure, str):
            self.figures[name], self.missing[name] = None, f"{caption}: {figure}"
        else:
            self.figures[name], self.captions[name] = figure, caption

    def lines(self) -> list[str]:
        """Lines of a report: the figures, then what is missing."""
        shown = [f"![{caption}]({name})" for name, caption in self.captions.items()]
        left_out = [f"- Not drawn: {reason}." for reason in self.missing.values()]
        return [*shown, *[""] * bool(shown), *left_out, *[""] * bool(left_out)]
