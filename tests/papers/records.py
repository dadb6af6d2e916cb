"""Records that break no rule of trust, and how a test changes them."""

import copy
import datetime
import json
import re
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from papers.repository import Repository
from papers.runner import RESULTS
from wirebench.record import recorded

KNOWN = Repository(frozenset({"c" * 40}))
Doctor = Callable[[dict[str, Any]], None]


def sound() -> dict[str, Any]:
    """A committed run's record, as it would be made today, by a known commit on a machine with nothing else to do."""
    record = copy.deepcopy(recorded.read(RESULTS / "gs-sgd/vgg16/gtopk-0"))
    record["environment"]["git"] = {"commit": "c" * 40, "dirty": False}
    record["environment"]["hosts"] = [{"ranks": [0, 1]}, {"ranks": [2, 3]}]
    machine = {"hostname": "a", "ranks": [0, 1, 2, 3], "cores": 2, "load_average": [0.5, 4.0]}
    record["load"] = [{**machine, "others_cores": 0.2, "steal": 0.0}]
    return record


def put(root: Path, name: str, **changes: object) -> Path:
    """A sound record with other times, so that no two are copies."""
    record = sound()
    moment = zlib.crc32(name.encode())
    record["environment"]["utc"] = datetime.datetime.fromtimestamp(moment, datetime.UTC).isoformat()
    record["seconds_total"] += moment / 1e6
    record["step_seconds"]["p90"] += moment / 1e12
    record["config"]["train"]["seed"] = int(name.rpartition("-")[2])
    record.update(changes)
    path = root / name / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))
    return path


def write(place: Path, record: Mapping[str, Any], **note: object) -> Path:
    """A run's folder, with its record and the study's note; the label is the name's, where no other is given."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "record.json").write_text(json.dumps(record))
    usual = {"label": place.name.rpartition("-")[0], "launch": "python train.py"}
    (place / "note.json").write_text(json.dumps({**usual, **note}))
    return place


def unlinked(table: str) -> str:
    """A table's text without where its links lead."""
    return re.sub(r"\[([^]]+)\]\([^)]+/record\.json\)", r"\1", table)


def doctor(path: Path, change: Doctor) -> None:
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))
