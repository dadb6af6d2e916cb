"""All-reduces that a study times: a file of cells for each layout."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suite.bench.collectives import parse_size
from suite.studies.runner import Command, Launch, shown, within
from suite.studies.trainings import Place
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
    place: Place
    collectives: tuple[str, ...]
    sizes: tuple[str, ...]
    seconds: float
    device: str = "cpu"

    def file(self, out: Path) -> Path:
        """Of the cells."""
        return out / "cells" / f"{self.label}.jsonl"

    def check(self) -> None:
        """UserError for links or sizes that cannot be read."""
        self.place.check()
        for size in self.sizes:
            parse_size(size)

    def is_there(self, out: Path) -> bool:
        """Whether all sizes were measured; UserError where the links were others."""
        file = self.file(out)
        if not file.exists():
            return False
        known = collective_results.load(file)
        refuse_other_links(file, known.header, self.place.link)
        return set(map(parse_size, self.sizes)) <= {cell.items for cell in known.cells}

    def make(self, out: Path, launch: Launch) -> bool:
        """Measure; whether it went well. Cells of an earlier run stay where it did not."""
        file = self.file(out)
        command = self.command(out)
        if launch(command) != 0:
            return False
        known = collective_results.load(file)
        # The ranks do not know how fast their links are.
        link = {"link": self.place.link} if self.place.link else {}
        collective_results.save(file, {**known.header, **link, "launch": shown(command)}, known.cells)
        return True

    def command(self, out: Path) -> Command:
        """What writes the file."""
        tool = ["wirebench", "bench", "collectives", "--collectives", *self.collectives, "--sizes", *self.sizes]
        device = ["--device", self.device] if self.device != "cpu" else []
        return self.place.on([*tool, *device, "--seconds", f"{self.seconds:g}", "--json", within(self.file(out))])


def refuse_other_links(path: Path, header: Mapping[str, Any], link: str) -> None:
    """UserError where what is there was measured on links of another rate."""
    known = header.get("link", link)
    if known != link:
        raise UserError(f"{path}: the links had {known}; --again measures anew, --out names another folder")
