"""Runs that take turns on emulated hosts: what `wirebench study NAME run` makes of a list of them."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from papers.launched import Trained, refuse_rows, refuse_set, rows_keys
from papers.runner import RESULTS, Launch, Part, measure, refuse_not_positive
from papers.trainings import Training
from wirebench.errors import UserError
from wirebench.record.rules import TURNS


@dataclass(frozen=True)
class Turns:
    """All that a study makes on emulated hosts: its run.py's flags, run and series.

    parts  by name; whole, short: the command lines of a study's `series`
    """

    parts: Mapping[str, Trained]
    whole: Sequence[Part]
    short: Sequence[Part]

    def flags(self, parser: argparse.ArgumentParser) -> None:
        """Add the options of what is run, and where."""
        add, names = parser.add_argument, list(self.parts)
        add("--parts", nargs="+", choices=names, default=names, metavar="NAME", help=f"{', '.join(names)} (all)")
        add("--rows", nargs="+", metavar="LABEL", help="of each part: dense, 'gs_sgd literal', ... (all)")
        add("--turns", type=int, help=f"runs of each row ({TURNS}, or the part's own number)")
        add("--config", type=Path, metavar="FILE", help="what is trained (the part's own)")
        add("--hosts", type=int, help="hosts of one worker each (the part's own)")
        add("--link", metavar="RATE", help="rate of every host's link (the part's own)")
        add("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="further settings, of all runs")
        add("--out", type=Path, metavar="FOLDER", help="where the results go, by part (results)")

    def run(self, options: argparse.Namespace, launch: Launch) -> list[str]:
        """Make the runs that are not there yet, part by part."""
        refuse_not_positive(options, "turns")
        chosen = [self.parts[name] for name in options.parts]
        refuse_rows(options.rows, chosen)
        refuse_set(options.set, {"output.dir", *rows_keys(chosen, options.rows)}, ", ".join(options.parts))
        runs: dict[Path, list[Training]] = {}
        for part in chosen:
            runs.setdefault(folder_of(part, options).resolve(), []).extend(trainings(part, options))
        return measure({out: those for out, those in runs.items() if those}, launch, options.again)

    def series(self, quick: bool) -> list[Part]:
        """See study.Runs."""
        return list(self.short if quick else self.whole)


def folder_of(part: Trained, options: argparse.Namespace) -> Path:
    """Where a part's runs are, by the flags of `Turns`."""
    out: Path | None = options.out
    return out / Path(part.folder).name if out else RESULTS / part.folder


def trainings(part: Trained, options: argparse.Namespace) -> list[Training]:
    """The runs of a part, by the flags of `Turns`."""
    assert part.here is not None
    if part.here.layout and options.hosts is not None:
        raise UserError(f"--hosts: {part.folder} has hosts in a layout, {part.here.layout}")
    changed = {key: value for key in ("link", "hosts") if (value := getattr(options, key)) is not None}
    repeats = options.turns
    if part.seeds and repeats is not None:
        repeats = min(repeats, part.repeats)
    found = part.trainings(Path(), part.here._replace(**changed), repeats, options.rows, options.set)
    return [each if options.config is None else replace(each, config=options.config) for each in found]
