"""What a study is: a folder of three files, found by its published.toml.

published.toml  what is claimed, where, in which setting (published.py)
run.py          flags(parser), run(options, launch) -> labels of the runs that failed, and series(quick) -> the flags of
                the runs that its reports show, or of a short version of them
report.py       flags(parser), findings(options) -> what was measured of the claims, and pages(options) -> the tables
                and figures. It may have committed() -> the flags of each report that is under version control, which
                `check` holds against their records; without it there is one, without flags
"""

import argparse
import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from papers.findings import Finding
from papers.page import Page
from papers.published import FILE, Published, load
from papers.runner import Launch, Part
from wirebench.config.plugins import fault
from wirebench.errors import UserError
from wirebench.utils.names import suggest

PACKAGE = "papers"


class Runs(Protocol):
    """A study's run.py. `--again` is a flag of every study; one of a paper has ON_CLUSTER, see launched.py."""

    def flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the study's own flags."""

    def run(self, options: argparse.Namespace, launch: Launch) -> list[str]:
        """Make the runs that are not there yet; the labels of those that failed. UserError for a mistake in a flag."""

    def series(self, quick: bool) -> list[Part]:
        """The command lines of `run` whose results the committed reports show; quick: of a few minutes in all.

        A word {data} or {images} stands for the folder of CIFAR-10, or of an image folder with train and val.
        """


class Report(Protocol):
    """A study's report.py."""

    def flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the study's own flags."""

    def pages(self, options: argparse.Namespace) -> Sequence[Page]:
        """The tables and figures of what was measured; nothing is written. UserError where nothing can be read."""

    def findings(self, options: argparse.Namespace) -> Sequence[Finding]:
        """Its claims beside what was measured; a claim without one counts as not run."""


@dataclass(frozen=True)
class Study:
    """A study by its name: a folder here, or a package of one's own (mine.latency)."""

    name: str

    @property
    def package(self) -> str:
        """Importable name."""
        return self.name if "." in self.name else f"{PACKAGE}.{self.name}"

    @property
    def folder(self) -> Path:
        """Where its files are; UserError where there is no such study."""
        if "." not in self.name and self.name not in available():
            raise UserError(f"no study {self.name!r}; {suggest(self.name, available())}")
        try:
            spec = importlib.util.find_spec(self.package)
        except (ImportError, ValueError):
            spec = None
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"no package {self.package!r} can be imported (its folder on PYTHONPATH?)")
        return Path(next(iter(spec.submodule_search_locations)))

    @property
    def published(self) -> Published:
        """What it claims; UserError for a file that cannot be read."""
        return load(self.folder)

    @property
    def runs(self) -> Runs:
        """Its run.py."""
        return cast(Runs, self._module("run"))

    @property
    def report(self) -> Report:
        """Its report.py."""
        return cast(Report, self._module("report"))

    def pages(self, options: argparse.Namespace) -> list[Page]:
        """What its report makes; a page that leads begins with the finding and a figure."""
        pages, finding = self.report.pages(options), self.published.finding
        leads = [place == 0 if page.leads is None else page.leads for place, page in enumerate(pages)]
        return [page.led_by(finding) if first else page for page, first in zip(pages, leads, strict=True)]

    def committed(self) -> list[argparse.Namespace]:
        """The options of each report that is under version control."""
        parser = argparse.ArgumentParser()
        self.report.flags(parser)
        lines: Sequence[Sequence[str]] = getattr(self.report, "committed", lambda: [[]])()
        return [parser.parse_args(each) for each in lines]

    def _module(self, part: str) -> object:
        file = self.folder / f"{part}.py"
        if not file.is_file():
            raise UserError(f"study {self.name!r} has no {part}.py: {file}")
        try:
            return importlib.import_module(f"{self.package}.{part}")
        except (ImportError, SyntaxError) as error:
            raise UserError(f"{file}: cannot be imported: {fault(error)}") from error


def available() -> list[str]:
    """Names of the studies of the suite, sorted."""
    return sorted(path.parent.name for path in Path(__file__).parent.glob(f"*/{FILE}"))
