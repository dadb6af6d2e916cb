"""What record.json must hold, schema 1, and the check that it does. A record may hold more."""

import hashlib
import os
from pathlib import Path
from typing import Any

from wirebench.config.loader import SECTIONS
from wirebench.errors import UserError
from wirebench.telemetry.step_stats import PHASES
from wirebench.utils.files import readable
from wirebench.utils.parsing import json_of

SCHEMA = 1
STATUSES = ("finished", "diverged", "interrupted")

_NUMBER = (int, float, type(None))
_COUNT = (int, type(None))
_SPREAD = dict.fromkeys(("median", "p10", "p90"), _NUMBER)
_SHAPE: dict[str, Any] = {
    "schema": int,
    "status": str,
    "config": dict,
    "environment": dict,
    "engine": str,
    "device": str,
    "world_size": int,
    "parameters": int,
    "images_per_second": {**_SPREAD, "mean": _NUMBER, "steps": int},
    "step_seconds": _SPREAD,
    "phases": dict.fromkeys(PHASES, _NUMBER),
    "bytes_per_step": dict.fromkeys(("payload", "dense", "wire", "nic"), _NUMBER),
    "compression_ratio": dict.fromkeys(("values", "with_indices", "wire"), _NUMBER),
    "requests": [{"kind": str, "plan": (str, type(None)), "rounds": _COUNT, "bytes": _NUMBER}],
    "history": [{"epoch": int, "seconds": _NUMBER, "loss": _NUMBER, "top1": _NUMBER}],
    "final": {"loss": _NUMBER, "top1": _NUMBER},
    "seconds_total": _NUMBER,
    "gpu": (dict, type(None)),
}
_YOUNGER: dict[str, Any] = {
    "checkpoints": {"saved": int, "stall_seconds": _NUMBER},
    "edition": {"name": str, "task": str},
    "worlds": [{"step": int, "workers_before": int, "workers": int, "steps_lost": int, "lost_residual": _NUMBER}],
}
"""Fields that older records lack; a record that has one has it like this."""
_RANK_0_GPU: dict[str, Any] = {
    "name": str, "utilisation_percent": {"mean": _NUMBER}, "memory_mb": {"max": _NUMBER},
    "power_watts": {"mean": _NUMBER}, "energy_joules": _NUMBER, "energy_source": (str, type(None)),
}  # fmt: skip
"""`gpu` of records from before all ranks' GPUs were sampled."""
_GPUS: dict[str, Any] = {
    "devices": [
        {
            **_RANK_0_GPU, "host": str, "uuid": str, "ranks": [int], "power_watts": {"mean": _NUMBER, "max": _NUMBER},
            "allocated_mb": {"max": _NUMBER}, "problem": (str, type(None)),
        }
    ],
    "ranks_without_gpu": [int],
    "ranks_missing": [int],
    **dict.fromkeys(("power_watts", "energy_joules", "joules_per_sample", "joules_per_point"), _NUMBER),
    "energy_source": (str, type(None)),
    "sampling": dict.fromkeys(
        ("interval_seconds", "samples_per_second", "seconds_per_sample", "share_of_time"), _NUMBER
    ),
}  # fmt: skip
_MEASURED: dict[str, Any] = {"load": [{"hostname": str, "cores": (int, float), "others_cores": _NUMBER}]}
"""Types of newer fields that are null if they could not be measured."""
_WORDS = {int: "a whole number", float: "a number", str: "a text", dict: "a table", type(None): "null"}


def problems(record: object) -> list[str]:
    """What is wrong with a record, one line each; empty for a valid one."""
    if not isinstance(record, dict):
        return ["needs a table"]
    if record.get("schema") != SCHEMA:
        return [f"schema: needs {SCHEMA}, got {record.get('schema')!r}"]
    younger = {name: shape for name, shape in _YOUNGER.items() if name in record}
    younger |= {name: shape for name, shape in _MEASURED.items() if record.get(name) is not None}
    if isinstance(record.get("gpu"), dict):
        younger["gpu"] = _GPUS if "devices" in record["gpu"] else _RANK_0_GPU
    mistakes = _differences("", record, _SHAPE | younger)
    if not mistakes:
        sections = {name: dict for name in record["config"] if name in SECTIONS}
        mistakes = _differences("config", record["config"], sections)
    if record.get("status") not in STATUSES:
        mistakes.append(f"status: needs one of {', '.join(STATUSES)}, got {record.get('status')!r}")
    return mistakes


def validate(record: object) -> None:
    """Raise UserError with the first problem of the record, if it has one."""
    for problem in problems(record):
        raise UserError(problem)


LEVELS_BELOW = 2


def _instead(path: Path) -> str:
    """What there is where a record is not, in words."""
    if path.name != "record.json":
        return ""
    if (path.parent / "config.toml").exists():
        return "; the run has not ended, or was killed"
    # Two levels are what studies have; somebody may have named the root of all files.
    for folder, below, files in os.walk(path.parent):
        if "record.json" in files:
            return f"; there are runs below, such as {folder}"
        below[:] = sorted(below) if len(Path(folder).relative_to(path.parent).parts) < LEVELS_BELOW else []
    return ""


_SOUND: set[bytes] = set()
"""Digests of texts that are valid records: a report reads each of thousands several times."""


def read(path: Path) -> dict[str, Any]:
    """The valid record of a run folder or of a record.json; UserError says what is missing or damaged."""
    path = path / "record.json" if path.is_dir() else path
    try:
        text = readable(path).read_bytes()
        record = json_of(text.decode())
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file{_instead(path)}") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
    digest = hashlib.sha256(text).digest()
    if digest not in _SOUND:
        try:
            validate(record)
        except UserError as error:
            raise UserError(f"{path}: not a run's record: {error}") from error
        _SOUND.add(digest)
    return record


def _differences(where: str, value: object, shape: Any) -> list[str]:
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            return [f"{where}: needs a table, got {value!r}"]
        missing = [f"{_join(where, key)}: is missing" for key in shape if key not in value]
        present = [key for key in shape if key in value]
        doubtful = [key for key in present if not _is_one(value[key], shape[key])]
        return missing + [line for key in doubtful for line in _differences(_join(where, key), value[key], shape[key])]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return [f"{where}: needs a list, got {value!r}"]
        return [line for i, item in enumerate(value) for line in _differences(f"{where}[{i}]", item, shape[0])]
    if _is_one(value, shape):
        return []
    kinds = shape if isinstance(shape, tuple) else (shape,)
    kinds = tuple(kind for kind in kinds if not (kind is int and float in kinds))
    return [f"{where}: needs {' or '.join(_WORDS[kind] for kind in kinds)}, got {value!r}"]


def _is_one(value: object, shape: Any) -> bool:
    """Whether a value that is neither a table nor a list is of one of these kinds; of most of a record it is."""
    return isinstance(shape, type | tuple) and isinstance(value, shape) and not isinstance(value, bool)


def _join(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
