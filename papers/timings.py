"""All-reduces that a study times: a file of cells for each layout."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.runner import Command, Launch, shown, within
from papers.trainings import TrainingPlace
from wirebench.bench.collectives import parse_size
from wirebench.errors import UserError
from wirebench.record import collective_results


@dataclass(frozen=True)
class Timing:
    """All collectives at all sizes on one layout: a file of cells.

    label    of the file
    sizes    of the sums, as `wirebench bench collectives` reads them; seconds: for each of them
    device   cpu or cuda, where the sums lie
    """

    label: str
    place: TrainingPlace
    collectives: tuple[str, ...]
    sizes: tuple[str, ...]
    seconds: float
    device: str = "cpu"

    def file(self, out: Path) -> Path:
        """Path of the file with the cells."""
        return out / "cells" / f"{self.label}.jsonl"

    def check(self) -> None:
        """UserError for links or sizes that cannot be read."""
        self.place.check()
        for size in self.sizes:
            parse_size(size)

    def is_there(self, out: Path) -> bool:
        """Whether all sizes were measured of all collectives; UserError where links or device were others."""
        file = self.file(out)
        if not file.exists():
            return False
        known = collective_results.load(file)
        refuse_other_links(file, known.header, self.place.link)
        if known.header.get("device", "cpu") != self.device:
            raise UserError(f"{file}: the sums lay elsewhere than on {self.device}; --out names another folder")
        cells = {(cell.collective, cell.items) for cell in known.cells}
        return {(name, parse_size(size)) for name in self.collectives for size in self.sizes} <= cells

    def make(self, out: Path, launch: Launch, again: bool = False) -> bool:
        """Measure; whether it went well. Cells of an earlier run stay where it did not."""
        file = self.file(out)
        made = file.with_name(f".{file.name}")
        command = self._into(made)
        if launch(command) != 0:
            return False
        if not made.exists():
            print(f"{file}: was not written; is its folder one that rank 0's machine shares?", file=sys.stderr)
            return False
        known = collective_results.load(made)
        made.unlink()
        if others := {cell.layout for cell in known.cells} - {self.label} if self.place.layout else ():
            print(f"{self.label}: the ranks were on {', '.join(sorted(others))}", file=sys.stderr)
            return False
        # The ranks do not know how fast their links are.
        told = {"link": self.place.link, "device": self.device if self.device != "cpu" else ""}
        more = {key: value for key, value in told.items() if value}
        launched = shown(self.command(out))
        collective_results.save(file, {**known.header, **more, "launch": launched}, known.cells)
        return True

    def command(self, out: Path) -> Command:
        """Return the command that writes the file."""
        return self._into(self.file(out))

    def _into(self, file: Path) -> Command:
        tool = ["wirebench", "bench", "collectives", "--collectives", *self.collectives, "--sizes", *self.sizes]
        device = ["--device", self.device] if self.device != "cpu" else []
        return self.place.on([*tool, *device, "--seconds", f"{self.seconds:g}", "--json", within(file)])


def refuse_other_links(path: Path, header: Mapping[str, Any], link: str) -> None:
    """UserError where what is there was measured on links of another rate."""
    known = header.get("link", link)
    if known != link:
        raise UserError(f"{path}: the links had {known}; --again measures anew, --out names another folder")
