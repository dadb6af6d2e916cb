"""A picture of some steps: spans on named tracks, saved as a trace that chrome://tracing and ui.perfetto.dev open."""

import json
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather
from wirebench.utils.files import write_atomically

TRACE = "trace.json"
"""Name of a run's saved trace."""
ALL_GATHER = "all-gather"
"""What the name of a span ends with in which a split schedule runs the second part of a bucket's exchange."""


class _Span(NamedTuple):
    rank: int
    track: str
    name: str
    begin: float
    end: float
    details: dict[str, Any]


class Timeline:
    """Spans of the ranks of a process, from any thread.

    rank  the default rank of a span
    `active` is switched by the train loop: while it is false, `span` keeps nothing and costs nothing.
    """

    def __init__(self, rank: int = 0) -> None:
        self.active = False
        self._rank = rank
        self._spans: list[_Span] = []
        self._lock = threading.Lock()

    def span(self, track: str, name: str, begin: float, end: float, **details: Any) -> None:
        """Draw `name` on `track` from `begin` to `end` (perf_counter seconds); details are shown when it is clicked."""
        if self.active:
            self.draw(track, name, begin, end, **details)

    def draw(self, track: str, name: str, begin: float, end: float, *, rank: int | None = None, **details: Any) -> None:
        """Draw a span whatever `active` is now: for times that become known later than their step."""
        with self._lock:
            self._spans.append(_Span(self._rank if rank is None else rank, track, name, begin, end, details))

    def join(self, engine: Engine) -> None:
        """Bring all processes' spans to rank 0; every process calls it. Hosts' clocks agree as well as NTP has them."""
        if not engine.distributed:
            return
        ahead = time.time() - time.perf_counter()
        mine = [each._replace(begin=each.begin + ahead, end=each.end + ahead) for each in self._taken()]
        gathered = gather(engine.communicators[0], mine)
        with self._lock:
            self._spans = [_Span(*each) for spans in gathered for each in spans]

    def save(self, path: Path) -> None:
        """Write the trace: one process per rank, one thread per track, microseconds from the first span."""
        spans = self._taken()
        tracks = {name: number for number, name in enumerate(dict.fromkeys(span.track for span in spans))}
        origin = spans[0].begin if spans else 0.0
        events = [event for rank in sorted({each.rank for each in spans}) for event in _names(rank, spans, tracks)]
        events += [_event(span, tracks[span.track], origin) for span in spans]
        write_atomically(path, json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, allow_nan=False) + "\n")

    def _taken(self) -> list[_Span]:
        with self._lock:
            return sorted(self._spans, key=lambda span: span.begin)


def _names(rank: int, spans: Iterable[_Span], tracks: dict[str, int]) -> Sequence[dict[str, Any]]:
    """Events that name a rank's process and its tracks."""
    own = {span.track for span in spans if span.rank == rank}
    named = [("process_name", 0, f"rank {rank}")]
    named += [("thread_name", number, name) for name, number in tracks.items() if name in own]
    return [{"name": kind, "ph": "M", "pid": rank, "tid": track, "args": {"name": name}} for kind, track, name in named]


def _event(span: _Span, track: int, origin: float) -> dict[str, Any]:
    start, duration = round(1e6 * (span.begin - origin), 3), round(1e6 * (span.end - span.begin), 3)
    place = {"pid": span.rank, "tid": track, "ts": start, "dur": max(duration, 0.0)}
    return {"name": span.name, "ph": "X", **place, "args": span.details}
