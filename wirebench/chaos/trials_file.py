"""The file of a campaign's trials: what its header and its lines hold, checked when it is read."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wirebench.chaos.faults import FAULTS
from wirebench.errors import UserError
from wirebench.utils import json_lines

KIND = "chaos"
VERB = "wirebench chaos"

Line = Mapping[str, Any]
_NUMBER = (int, float)
_MAYBE = (int, float, type(None))
HEADER: dict[str, tuple[type, ...]] = {
    "hosts": (int,), "elastic": (bool,), "mirror": (bool,), "timeout_seconds": _NUMBER, "mtbf_seconds": _NUMBER,
    "link": (str,), "kinds": (list,), "seed": (int,), "calls": (list,),
}  # fmt: skip
TRIAL: dict[str, tuple[type, ...]] = {
    "number": (int,), "kind": (str,), "host": (str,), "hang": (bool,), "started_anew": (bool,), "due_to_name": (int,),
    "named_by": (int,), "name_seconds": _MAYBE, "pause_seconds": _NUMBER, "whole_seconds": _MAYBE,
    "lost_residual": _NUMBER, "seconds": _NUMBER, "images": _NUMBER, "calm_images_per_second": _MAYBE,
    "load": (list,), "wait_seconds": _NUMBER, "images_redone": _NUMBER,
}  # fmt: skip
"""The fields of a trial that a report reads, with their types."""


def load(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the trials; UserError for a file that holds something else."""
    header, lines = json_lines.load(path, KIND, VERB)
    for number, (line, shape) in enumerate([(header, HEADER), *((line, TRIAL) for line in lines)], 1):
        has_more = shape is HEADER and isinstance(line, dict) and "more" in line
        wrong = _wrong(line, {**shape, "more": (tuple, list)} if has_more else shape)
        if wrong:
            raise UserError(f"{path}: is no file of this {VERB}: line {number}: {wrong}; name another --out")
    return header, lines


def _wrong(line: object, shape: Mapping[str, tuple[type, ...]]) -> str:
    """What is wrong with a line; "" where nothing is."""
    if not isinstance(line, dict):
        return "needs a table"
    for name, types in shape.items():
        value = line.get(name)
        if name not in line or (isinstance(value, bool) and bool not in types) or not isinstance(value, types):
            return f"{name} is {value!r:.40}" if name in line else f"has no {name}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} is {value}"
    if "kind" in shape and line["kind"] not in FAULTS:
        return f"kind is {line['kind']!r:.40}"
    return "seconds is not above 0" if "seconds" in shape and line["seconds"] <= 0 else ""
