"""The steps that were drawn in a run's trace.json: their messages, and the buckets that these belong to."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.diagnose.link import TimedMessage
from wirebench.utils.files import readable
from wirebench.utils.parsing import json_of

REQUESTS, EXCHANGE = "requests", "exchange"
"""Tracks of trace.json."""


class DrawnSteps(NamedTuple):
    """What trace.json says of a step of rank 0.

    messages  in order, each at its fastest
    seconds   of all messages of a step: the median step, in which waiting for another rank is included
    buckets   elements of each bucket of the gradient, in backward order; () where they are not drawn
    """

    messages: Sequence[TimedMessage] = ()
    seconds: float = 0.0
    buckets: tuple[int, ...] = ()


NOTHING = DrawnSteps()


def read(path: Path, record: dict[str, Any]) -> DrawnSteps:
    """Read trace.json; nothing where it is missing, or where its steps differ in their number of requests."""
    try:
        content = json_of(readable(path).read_text(encoding="utf-8"))
        events = content["traceEvents"] if isinstance(content, dict) else content
        spans = [
            (event["name"], event["dur"] * 1e-6, event["args"]["wire_bytes"]) for event in _track(events, REQUESTS)
        ]
        buckets = {
            event["name"]: int(event["args"]["elements"])
            for event in _track(events, EXCHANGE)
            if event["name"].count(" ") == 1  # not its all-gather
        }
    except (OSError, ValueError, KeyError, TypeError):
        return NOTHING
    each_step = len(record["requests"])
    if not each_step or len(spans) < each_step or len(spans) % each_step:
        return NOTHING
    steps = [spans[place : place + each_step] for place in range(0, len(spans), each_step)]
    rounds = [request.get("rounds") or 1 for request in record["requests"]]
    messages = [
        TimedMessage(
            column[0][0], min(span[1] for span in column), statistics.median(span[2] for span in column), count
        )
        for column, count in zip(zip(*steps, strict=True), rounds, strict=True)
    ]
    seconds = statistics.median(sum(span[1] for span in step) for step in steps)
    numbered = sorted(buckets, key=lambda name: int(name.rpartition(" ")[2]))
    return DrawnSteps(messages, seconds, tuple(buckets[name] for name in numbered))


def _track(events: Sequence[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """The spans of rank 0's track of this name."""
    tracks = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and event["args"]["name"] == name and event["pid"] == 0
    }
    return (event for event in events if event.get("ph") == "X" and (event["pid"], event["tid"]) in tracks)
