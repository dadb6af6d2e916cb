"""Runs that take turns on emulated hosts: what `wirebench study NAME run` makes of a list of them."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from papers.runner import RESULTS, Launch, Part, measure
from papers.trainings import Cluster, Composition, Training
from papers.trust import TURNS
from wirebench.errors import UserError
from wirebench.utils.names import suggest


@dataclass(frozen=True)
class Emulated:
    """Compositions that take turns on one emulated cluster, and stand in one table.

    folder       of their runs, below results/
    rows         config and overrides, by label; shared: overrides of all
    keeps        files beside the record that stay with the first turn
    between      what stands for a space in the names of runs
    may_diverge  whether a run that diverged is a result
    """

    folder: str
    place: Cluster
    rows: Mapping[str, Composition]
    shared: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    between: str = "_"
    may_diverge: bool = True

    def trainings(self, options: argparse.Namespace) -> Iterator[Training]:
        """Every row once, then every one again; options as from `flags`."""
        changed = {"link": options.link, "hosts": options.hosts}
        place = self.place._replace(**{key: value for key, value in changed.items() if value is not None})
        rows = [row for row in self.rows.items() if options.rows is None or row[0] in options.rows]
        for turn in range(options.turns):
            for label, (config, overrides) in rows:
                words = {word.partition("=")[0]: word for word in (*self.shared, *overrides, *options.set)}
                name = label.replace(", ", "-").replace(" ", self.between)
                keeps = self.keeps if turn == 0 else ()
                yield Training(
                    f"{name}-{turn}", label, place, options.config or Path(config), tuple(words.values()), keeps,
                    self.may_diverge,
                )  # fmt: skip


@dataclass(frozen=True)
class Turns:
    """All that a study makes on emulated hosts: its run.py's flags, run and series.

    parts  by name; whole, short: the command lines of a study's `series`
    """

    parts: Mapping[str, Emulated]
    whole: Sequence[Part]
    short: Sequence[Part]

    def flags(self, parser: argparse.ArgumentParser) -> None:
        """What is run, and where."""
        add, names = parser.add_argument, list(self.parts)
        add("--parts", nargs="+", choices=names, default=names, metavar="NAME", help=f"{', '.join(names)} (all)")
        add("--rows", nargs="+", metavar="LABEL", help="of each part: dense, 'gs_sgd literal', ... (all)")
        add("--turns", type=int, default=TURNS, help="runs of each row (%(default)s)")
        add("--config", type=Path, metavar="FILE", help="what is trained (the part's own)")
        add("--hosts", type=int, help="hosts of one worker each (the part's own)")
        add("--link", metavar="RATE", help="rate of every host's link (the part's own)")
        add("--set", nargs="+", default=[], metavar="KEY=VALUE", help="further settings, of all runs")
        add("--out", type=Path, metavar="FOLDER", help="where the results go, by part (results)")

    def run(self, options: argparse.Namespace, launch: Launch) -> list[str]:
        """Make the runs that are not there yet, part by part."""
        if options.turns < 1:
            raise UserError(f"--turns: must be positive, got {options.turns}")
        chosen = [self.parts[name] for name in options.parts]
        labels = list(dict.fromkeys(label for part in chosen for label in part.rows))
        for label in options.rows or ():
            if label not in labels:
                raise UserError(f"--rows: no {label!r}; {suggest(label, labels)}")
        runs: dict[Path, list[Training]] = {}
        for part in chosen:
            folder = options.out / Path(part.folder).name if options.out else RESULTS / part.folder
            runs.setdefault(folder.resolve(), []).extend(part.trainings(options))
        return measure({out: those for out, those in runs.items() if those}, launch, options.again)

    def series(self, quick: bool) -> list[Part]:
        """See study.Runs."""
        return list(self.short if quick else self.whole)
