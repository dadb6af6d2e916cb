"""Compositions named in a file before they are run, e.g. "4x100mbit optimal topk native", and their runs."""

from pathlib import Path
from typing import NamedTuple

from papers.trainings import Cluster, Training
from wirebench import compressors
from wirebench.config.plugins import check_type
from wirebench.errors import UserError
from wirebench.topology.rates import parse_rate
from wirebench.utils.parsing import toml_of

DENSITY = 0.01
WORDS = "HOSTSxRATE SCHEDULER COMPRESSOR COLLECTIVE"


class Composition(NamedTuple):
    """A scheduler, a compressor and a collective on an emulated cluster of one rank a host."""

    hosts: int
    link: str
    scheduler: str
    compressor: str
    collective: str

    @property
    def name(self) -> str:
        """Name of its run's folder."""
        return f"{self.hosts}x{self.link}-{self.scheduler}-{self.compressor}-{self.collective}"

    @property
    def overrides(self) -> tuple[str, ...]:
        """Overrides of the config; a compressor that has a density works at DENSITY."""
        has_density = "density" in compressors.PLUGINS.options(self.compressor)
        return (
            f"scheduler.name={self.scheduler}",
            f"compressor.name={self.compressor}",
            *([f"compressor.density={DENSITY:g}"] if has_density else []),
            f"collective.name={self.collective}",
        )

    def training(self, config: Path) -> Training:
        """Its run."""
        label = f"{self.scheduler}, {self.compressor}, {self.collective}"
        return Training(self.name, label, Cluster(self.link, self.hosts), config, self.overrides)


def load(path: Path) -> list[Composition]:
    """The compositions of a file, each once; UserError, with the line that is wrong, for anything else."""
    try:
        table = toml_of(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--list: {path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"--list: {path}: not valid TOML: {error}") from error
    if set(table) != {"compositions"}:
        raise UserError(f"--list: {path}: needs one key, compositions, a list of lines such as {WORDS!r}")
    check_type(f"--list: {path}: compositions", table["compositions"], list[str])
    found = [
        _parsed(f"--list: {path}: compositions[{place}]", text) for place, text in enumerate(table["compositions"])
    ]
    if not found:
        raise UserError(f"--list: {path}: compositions: names none")
    twice = next((each for place, each in enumerate(found) if each in found[:place]), None)
    if twice is not None:
        raise UserError(f"--list: {path}: compositions: {twice.name} stands there twice")
    return found


def _parsed(where: str, text: str) -> Composition:
    cluster, *names = text.split() or [""]
    hosts, _, link = cluster.partition("x")
    if not hosts.isdecimal() or not int(hosts) > 1 or len(names) != 3:
        raise UserError(f"{where}: needs {WORDS!r} with 2 or more hosts, got {text!r}")
    parse_rate(link, where)
    return Composition(int(hosts), link, *names)
