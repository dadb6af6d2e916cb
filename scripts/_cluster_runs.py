"""Trainings on emulated clusters, one after the other, each kept with a note of what it was."""

import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from scripts import _method_runs
from scripts._launching import ROOT, Command, Launch, attempt, keep, shown
from suite.compose.resolve import resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.topology.rates import parse_rate


class Planned(NamedTuple):
    """A run to be made: its folder's name and label, its cluster, config and overrides."""

    folder: str
    label: str
    hosts: int
    link: str
    config: Path
    overrides: tuple[str, ...]

    def command(self, folder: Path) -> Command:
        """What makes it in `folder`."""
        where = folder.relative_to(ROOT) if folder.is_relative_to(ROOT) else folder
        cluster = [sys.executable, "scripts/cluster.py", "run", "--hosts", str(self.hosts), "--link", self.link]
        return [*cluster, "--", "python", "train.py", str(self.config), *self.overrides, f"output.dir={where}"]


def check(planned: Iterable[Planned]) -> None:
    """UserError for what would fail in one of the runs: better now than after half an hour."""
    for each in planned:
        parse_rate(each.link)
        if each.hosts < 1:
            raise UserError(f"--hosts: must be positive, got {each.hosts}")
        try:
            resolve(loader.load(ROOT / each.config, list(each.overrides)))
        except UserError as error:
            raise UserError(f"{each.label}: {error}") from error


def measure(
    planned: Sequence[Planned], out: Path, launch: Launch, again: bool = True, keeps: Sequence[str] = ()
) -> list[str]:
    """Make all runs below `out`; returns the labels of those that failed.

    A run is made in a folder beside its own, whose earlier content it replaces when it has left a result.
    again  also those that are there already; keeps: files beside record and config
    """
    failed = []
    for each in planned:
        folder = out / each.folder
        if not again and (folder / _method_runs.NOTE).exists():
            continue
        made = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(made, ignore_errors=True)
        try:
            if attempt(each.command(made), made, launch):
                keep(made, keeps)
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
                note = {"label": each.label, "hosts": each.hosts, "link": each.link}
                _method_runs.write(folder, {**note, "launch": shown(each.command(folder))})
            else:
                failed.append(each.label)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return list(dict.fromkeys(failed))
