"""What a run's folder says of its time: the ranks' phases, the requests of the steps that were drawn, the link."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wirebench.comm.base import ring_reduce_bytes
from wirebench.diagnose import drawn, live
from wirebench.diagnose.drawn import NOTHING, DrawnSteps
from wirebench.diagnose.job import RecordedJob
from wirebench.diagnose.link import UNKNOWN, FittedLink, TimedMessage, fitted
from wirebench.diagnose.live import UnderWay
from wirebench.errors import UserError
from wirebench.profiling.profile_files import LAYERS
from wirebench.record import schema
from wirebench.simulation import trace
from wirebench.simulation.trace import Trace
from wirebench.telemetry.rank_facts import COMPUTING
from wirebench.topology import topology_file

MOST_NAMED = 8
"""Runs of a folder that an error names."""
UNNAMED = "?"
"""The host of a rank that does not say it."""
LOCAL = "local"
"""The engine of virtual workers: one process, and no network."""


@dataclass(frozen=True)
class Evidence:
    """The data of a run from which its causes are found.

    ranks      the record's table of ranks, one at least
    drawn      the steps of trace.json; empty if the file is missing, or the run had a single process
    link       fitted to the messages of those steps
    alone      the link, measured without other traffic (measure.py)
    under_way  how far the run has come; None if it has ended
    nominal_start  seconds that starting a message should take; None if no source gives it
    folder     the run's folder
    layers     the run's own trace of its model; None if it has none
    job        what the profiler's files say of a job; None for a run of train.py
    """

    record: dict[str, Any]
    ranks: Sequence[dict[str, Any]]
    drawn: DrawnSteps = NOTHING
    link: FittedLink = UNKNOWN
    alone: FittedLink = UNKNOWN
    under_way: UnderWay | None = None
    nominal_start: float | None = None
    folder: Path = Path()
    layers: Trace | None = None
    job: RecordedJob | None = None

    @property
    def messages(self) -> Sequence[TimedMessage]:
        """The messages of a step, in order; empty if they are not known."""
        return self.drawn.messages

    @property
    def wire_bytes(self) -> float:
        """Bytes of them all, which rank 0 sends in a step."""
        return sum(each.wire_bytes for each in self.messages)

    @property
    def is_virtual(self) -> bool:
        """Whether the workers are virtual: what they exchange are copies in memory."""
        return bool(self.record["engine"] == LOCAL)

    @property
    def has_network(self) -> bool:
        """Whether the ranks are several processes, which send each other messages; assumed while a run is under way."""
        return not self.is_virtual and (self.under_way is not None or int(self.record["world_size"]) > 1)

    @property
    def on_one_host(self) -> bool:
        """Whether all ranks are on one host, and their messages on no link; emulated hosts are several."""
        hosts = {each["host"] for each in self.ranks}
        return len(self.ranks) == self.record["world_size"] and len(hosts) == 1 and UNNAMED not in hosts

    @property
    def ranks_seen(self) -> list[int]:
        """The ranks whose phases are known: only rank 0 while a run is under way, and in an older record."""
        return [each["rank"] for each in self.ranks]

    @property
    def step(self) -> float:
        """Median seconds of a step of rank 0."""
        return float(self.record["step_seconds"]["median"])

    @property
    def whole(self) -> float:
        """Seconds that shares are of: the median step, or the sum of the phases, whose means slow steps make longer."""
        return max(self.step, sum(map(self.phase, (*COMPUTING, "data", "exchange_exposed"))))

    @property
    def exposed(self) -> float:
        """Seconds of a step that the fastest-waiting rank waits for the exchange: no rank's work, the network's."""
        return min(float(each["phases"]["exchange_exposed"]) for each in self.ranks)

    def phase(self, name: str) -> float:
        """The mean of a phase over ranks."""
        return statistics.fmean(each["phases"][name] for each in self.ranks)

    def computing(self, rank: int) -> float:
        """Seconds of a step in which a rank computes: the median, or in an older record the mean."""
        told = self.ranks[rank].get("compute_seconds")
        return float(told or sum(self.ranks[rank]["phases"][name] for name in COMPUTING))

    def crowd(self, rank: int) -> int:
        """Ranks of the run on the rank's machine, which emulated hosts share: all of them have its cores alone."""
        machines = [each["ranks"] for each in self.record.get("load") or []]
        here = next((len(ranks) for ranks in machines if rank in ranks), 1)
        return max(here, int(self.ranks[rank].get("ranks_on_host", 1)))

    def plugin(self, kind: str) -> str:
        """The name of the run's compressor, scheduler, ..."""
        return str(self.record["config"].get(kind, {}).get("name", "?"))

    @property
    def saved_bytes(self) -> float | None:
        """Bytes that a rank sends less in a step than dense fp32 on a ring would; None while they are not known."""
        told = self.record["bytes_per_step"]
        sent = told.get("wire_mean") or told["wire"] or 0.0
        return None if told["dense"] is None else ring_reduce_bytes(told["dense"], self.record["world_size"]) - sent

    @property
    def nominal(self) -> float | None:
        """Nominal rate of the run's fastest link, in bytes per second; None if no host reports one."""
        return max((rate for _, _, rate in self.used_links()), default=None)

    def used_links(self) -> list[tuple[str, str, float]]:
        """(host, interface, nominal bytes per second), by host, of the interface that carried most."""
        links = {}
        for each in self.ranks:
            rates, sent = each.get("link_mbit") or {}, each.get("sent") or {}
            used = max((name for name in sent if name in rates), key=sent.__getitem__, default=None)
            if used is not None:
                links[each["host"]] = (each["host"], used, rates[used] * 1e6 / 8)
        return list(links.values())


def read(folder: Path) -> Evidence:
    """The evidence of a run's folder, or of a record.json; UserError where it has no counted step.

    Of a run that is under way rank 0's phases so far are all there is.
    """
    if live.started(folder):
        record, under_way = live.read(folder)
        return Evidence(record, [_alone(record)], under_way=under_way, folder=folder)
    if not (folder / "record.json").is_file() and (runs := sorted(folder.glob("*/record.json"))):
        names = ", ".join(str(each.parent) for each in runs[:MOST_NAMED]) + ", ..." * (len(runs) > MOST_NAMED)
        raise UserError(f"{folder}: is a folder of runs; name one of them: {names}")
    if not folder.is_file() and not (folder / "record.json").is_file():
        raise UserError(f"{folder}: has no record.json; `wirebench train CONFIG output.dir={folder}` makes a run there")
    record = schema.read(folder)
    if record["step_seconds"]["median"] is None:
        raise UserError(f"{folder}: no step of this run was counted, so there are no times to look into")
    ranks = record.get("ranks") or [_alone(record)]
    if any(each["phases"] is None for each in ranks):
        raise UserError(f"{folder}: a rank of this run counted no step")
    if record["engine"] == LOCAL or record["world_size"] == 1:
        return Evidence(record, ranks)
    place = folder if folder.is_dir() else folder.parent
    found = drawn.read(place / "trace.json", record)
    return Evidence(
        record, ranks, found, fitted(found.messages), nominal_start=_nominal_start(record), folder=place,
        layers=_layers(place / LAYERS, record),
    )  # fmt: skip


def _layers(path: Path, record: dict[str, Any]) -> Trace | None:
    """The trace that the run made of its model; None where it made none, and where the file is another model's."""
    try:
        found = trace.load(path) if path.exists() else None
    except UserError:
        return None
    return found if found is not None and 4 * found.numel == record["bytes_per_step"]["dense"] else None


def _nominal_start(record: dict[str, Any]) -> float | None:
    """Start-up seconds of a link between machines, from the run's topology file; None without one, or if not found."""
    named = record["config"].get("network", {}).get("topology", "")
    if not named.endswith(".toml") or not Path(named).is_file():
        return None
    links = topology_file.load(named).root.links
    return links[0].latency_seconds if links else None


def _alone(record: dict[str, Any]) -> dict[str, Any]:
    """The table of ranks of a run that has none: rank 0's phases."""
    environment = record["environment"]
    phases = {name: value or 0.0 for name, value in record["phases"].items()}
    cores = (environment.get("cpu") or {}).get("cores")
    return {
        "rank": 0, "host": environment.get("hostname", UNNAMED), "threads": environment.get("threads_per_process"),
        "cores": cores, "ranks_on_host": 1, "step_seconds": record["step_seconds"]["median"], "phases": phases,
        "sent": {}, "link_mbit": {},
    }  # fmt: skip
