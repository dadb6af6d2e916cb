"""What was forecast before the runs of a folder: forecast.json beside them.

{"kind", "commit", "changed", "utc", "constants", "given": {}, "rows": [{"name", "seconds", "low", "high"}]}
"""

import datetime
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from papers.runner import within
from wirebench.errors import UserError
from wirebench.planner.compositions import density_of
from wirebench.telemetry import environment
from wirebench.topology.rates import parse_rate
from wirebench.utils.files import write_atomically
from wirebench.utils.parsing import json_of

FILE, WRITER = "forecast.json", "`wirebench study planner run`"
LISTED, BEST, SIDES, ORDER = KINDS = ("list", "best", "sides", "order")
"""What is forecast: the steps of compositions that a list names; the planner's best ones; both sides of break-evens;
the order of the methods of today."""
DENSITY = 0.01
"""Of the compressors that have one."""


class ClusterComposition(NamedTuple):
    """A scheduler, a compressor and a collective on an emulated cluster of one rank a host."""

    hosts: int
    link: str
    scheduler: str
    compressor: str
    collective: str

    @property
    def name(self) -> str:
        """The name of its runs: HOSTSxLINK-SCHEDULER-COMPRESSOR-COLLECTIVE."""
        return f"{self.hosts}x{self.link}-{self.scheduler}-{self.compressor}-{self.collective}"

    @property
    def label(self) -> str:
        """The composition, for tables."""
        return f"{self.scheduler}, {self.compressor}, {self.collective}"

    def overrides(self, density: float | None) -> tuple[str, ...]:
        """Overrides of a config. density: None: the compressor's own"""
        options = density_of(self.compressor, density).items()
        return (
            f"scheduler.name={self.scheduler}",
            f"compressor.name={self.compressor}",
            *(f"compressor.{key}={value:g}" for key, value in options),
            f"collective.name={self.collective}",
        )


def composition(name: str) -> ClusterComposition:
    """The composition of this name, such as 4x100mbit-optimal-topk-native; ValueError for another text."""
    cluster, *names = name.split("-")
    hosts, _, link = cluster.partition("x")
    if not hosts.isdecimal() or not int(hosts) > 1 or len(names) != 3:
        raise ValueError(f"needs HOSTSxRATE-SCHEDULER-COMPRESSOR-COLLECTIVE with 2 or more hosts, got {name!r}")
    parse_rate(link)
    return ClusterComposition(int(hosts), link, *names)


@dataclass(frozen=True)
class Expected:
    """The forecast of a step.

    name         of its runs, without the turn
    low, high    its range; None: none was given
    composition  by its name, where the runs' name is another; "" for a method of today
    """

    name: str
    seconds: float
    low: float | None = None
    high: float | None = None
    composition: str = ""

    def __post_init__(self) -> None:
        """ValueError for seconds that cannot be."""
        numbers = [each for each in (self.low, self.seconds, self.high) if each is not None]
        if not numbers[0] > 0 or numbers[-1] == math.inf or numbers != sorted(numbers):
            raise ValueError(f"{self.name}: needs 0 < low <= seconds <= high, got {numbers}")

    @property
    def composed(self) -> ClusterComposition:
        """Its composition; ValueError for a method of today."""
        return composition(self.composition or self.name)


@dataclass(frozen=True)
class Forecast:
    """The forecasts of a folder's steps; of the planner's best and of an order the first row is the planner's first.

    constants        the file of the machine's constants
    given            what else the planner was given
    commit, changed  that forecast, and whether its checkout had changes; utc: when. None: older files do not say it
    """

    kind: str
    rows: tuple[Expected, ...]
    constants: str
    commit: str
    given: dict[str, Any] = field(default_factory=dict)
    changed: bool = False
    utc: str | None = None

    @property
    def names(self) -> list[str]:
        """The names of all rows."""
        return [row.name for row in self.rows]

    @property
    def at(self) -> datetime.datetime | None:
        """The time of the forecast; None if it is not noted."""
        return None if self.utc is None else datetime.datetime.fromisoformat(self.utc)

    @property
    def made(self) -> str:
        """By which commit, and when, in words."""
        changes, at = " and changes" if self.changed else "", f" at {self.utc}" if self.utc else ""
        return f"by commit {self.commit[:10]}{changes}{at}"


def signed(kind: str, rows: Sequence[Expected], constants: Path, **given: Any) -> Forecast:
    """The forecast with this checkout's commit and the time."""
    git = environment.git() or {"commit": "unknown", "dirty": True}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Forecast(kind, tuple(rows), within(constants), git["commit"], given, git["dirty"], now)


def save(folder: Path, forecast: Forecast) -> None:
    """Write it. Raises OSError."""
    rows = [{key: value for key, value in asdict(row).items() if value != ""} for row in forecast.rows]
    about = json.dumps({key: value for key, value in asdict(forecast).items() if key != "rows"}, indent=1)
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    write_atomically(folder / FILE, about.removesuffix("\n}") + f',\n "rows": [\n{lines}\n ]\n}}\n')


def load(folder: Path) -> Forecast | None:
    """What was forecast before the runs of `folder`, None where nothing was; UserError for a damaged file."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json_of(path.read_text(encoding="utf-8"))
        forecast = Forecast(**{**content, "rows": tuple(Expected(**row) for row in content["rows"])})
        if forecast.kind not in KINDS or not forecast.rows:
            raise ValueError(f"needs rows, and a kind of {', '.join(KINDS)}")
        _ = forecast.at, forecast.kind == ORDER or [row.composed for row in forecast.rows]
        return forecast
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path}: is not what {WRITER} writes: {error}") from error
