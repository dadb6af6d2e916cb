"""What a run's folder says of its time: the ranks' phases, the requests of the steps that were drawn, the link."""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from wirebench.errors import UserError
from wirebench.record import schema

COMPUTING = ("forward", "backward", "update")
REQUESTS = "requests"
"""The track of trace.json."""


class Message(NamedTuple):
    """A request of every step, as rank 0 saw it.

    seconds  the shortest of the steps that were drawn: the one that waited least for another rank
    rounds   messages one after the other; 1 for an engine's own call
    """

    kind: str
    seconds: float
    wire_bytes: float
    rounds: int


class Link(NamedTuple):
    """What a message costs: seconds to start a round, and bytes per second; None where the run cannot tell."""

    start_seconds: float | None
    bytes_per_second: float | None


@dataclass(frozen=True)
class Evidence:
    """A run, as far as its causes go.

    ranks     the record's table of ranks, one at least
    messages  of a step; empty where trace.json is missing or has none
    link      fitted to the messages
    """

    record: dict[str, Any]
    ranks: Sequence[dict[str, Any]]
    messages: Sequence[Message]
    link: Link

    @property
    def step(self) -> float:
        """Median seconds of a step of rank 0."""
        return float(self.record["step_seconds"]["median"])

    @property
    def exposed(self) -> float:
        """Seconds of a step that the fastest-waiting rank waits for the exchange: no rank's work, the network's."""
        return min(float(each["phases"]["exchange_exposed"]) for each in self.ranks)

    def phase(self, name: str) -> float:
        """The mean of a phase over ranks."""
        return statistics.fmean(each["phases"][name] for each in self.ranks)

    def computing(self, rank: int) -> float:
        """Seconds of a step in which a rank computes."""
        return float(sum(self.ranks[rank]["phases"][name] for name in COMPUTING))


def read(folder: Path) -> Evidence:
    """The evidence of a run's folder, or of a record.json; UserError where it has no counted step."""
    record = schema.read(folder)
    if record["step_seconds"]["median"] is None:
        raise UserError(f"{folder}: no step of this run was counted, so there are no times to look into")
    ranks = record.get("ranks") or [_alone(record)]
    if any(each["phases"] is None for each in ranks):
        raise UserError(f"{folder}: a rank of this run counted no step")
    trace = (folder if folder.is_dir() else folder.parent) / "trace.json"
    messages = _messages(trace, record)
    return Evidence(record, ranks, messages, fitted(messages))


def fitted(messages: Sequence[Message]) -> Link:
    """The line seconds = start * rounds + bytes / rate through all messages; both lie above 0, or are not known."""
    known = [each for each in messages if each.seconds > 0]
    if not known:
        return Link(None, None)
    sizes = {each.wire_bytes / each.rounds for each in known}
    if max(sizes) < 4 * min(sizes):
        # Alike: what of their time is start-up cannot be told. The rate is the least that it can be.
        return Link(None, max(each.wire_bytes / each.seconds for each in known))
    rows = np.array([[each.rounds, each.wire_bytes] for each in known])
    seconds = np.array([each.seconds for each in known])
    # Each message counts by its share, or the largest alone would decide.
    weights = 1 / seconds
    (start, per_byte), *_ = np.linalg.lstsq(rows * weights[:, None], seconds * weights, rcond=None)
    return Link(float(start) if start > 0 else None, float(1 / per_byte) if per_byte > 0 else None)


def _alone(record: dict[str, Any]) -> dict[str, Any]:
    """The table of ranks of a run that has none: rank 0's phases."""
    environment = record["environment"]
    phases = {name: value or 0.0 for name, value in record["phases"].items()}
    cores = (environment.get("cpu") or {}).get("cores")
    return {
        "rank": 0, "host": environment.get("hostname", "?"), "threads": environment.get("threads_per_process"),
        "cores": cores, "ranks_on_host": 1, "step_seconds": record["step_seconds"]["median"], "phases": phases,
        "sent": {}, "link_mbit": {},
    }  # fmt: skip


def _messages(path: Path, record: dict[str, Any]) -> list[Message]:
    """Of a step, in order; [] where the steps that were drawn differ in their number of requests."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        events = content["traceEvents"] if isinstance(content, dict) else content
        tracks = {
            (event["pid"], event["tid"])
            for event in events
            if event.get("name") == "thread_name" and event["args"]["name"] == REQUESTS and event["pid"] == 0
        }
        drawn = [event for event in events if event.get("ph") == "X" and (event["pid"], event["tid"]) in tracks]
        spans = [(event["name"], event["dur"] * 1e-6, event["args"]["wire_bytes"]) for event in drawn]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    each_step = len(record["requests"])
    if not each_step or len(spans) < each_step or len(spans) % each_step:
        return []
    steps = [spans[place : place + each_step] for place in range(0, len(spans), each_step)]
    rounds = [request.get("rounds") or 1 for request in record["requests"]]
    return [
        Message(column[0][0], min(span[1] for span in column), statistics.median(span[2] for span in column), count)
        for column, count in zip(zip(*steps, strict=True), rounds, strict=True)
    ]
