"""A run's record as MLPerf's log lines: `:::MLLOG {json}`, one event a line, as the logging library mllog writes them.

Only what the record knows is written, and only what is true: no submitter, no status of availability, no cleared
caches. Times are reckoned from `environment.utc`, which is known to the second. docs/formats.md lists the keys.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from wirebench.errors import UserError

TOKEN = ":::MLLOG"
START, END, POINT = "INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"


class LogEvent(NamedTuple):
    """One line; `seconds` from the first step on, less than 0 before it."""

    seconds: float
    kind: str
    key: str
    value: Any = None
    metadata: Mapping[str, Any] = {}


def lines(record: Mapping[str, Any]) -> list[str]:
    """The log of a valid record, in the order of time; UserError where the record does not say when it was made."""
    utc = record["environment"].get("utc")
    if not isinstance(utc, str):
        raise UserError("environment.utc: the record does not say when the run began")
    origin = datetime.fromisoformat(utc).timestamp()
    return [_line(origin, event) for event in _events(record)]


def _line(origin: float, event: LogEvent) -> str:
    content = {
        "namespace": "", "time_ms": round(1000 * (origin + event.seconds)), "event_type": event.kind,
        "key": event.key, "value": event.value, "metadata": dict(event.metadata),
    }  # fmt: skip
    return f"{TOKEN} {json.dumps(content, allow_nan=False)}"


def _events(record: Mapping[str, Any]) -> Iterator[LogEvent]:
    started = record.get("startup_seconds")  # older records have none
    begin = -(started or 0.0)
    if started is not None:
        yield LogEvent(begin, START, "init_start")
    for key, value in _setting(record).items():
        if value is not None:
            yield LogEvent(begin, POINT, key, value)
    if started is not None:
        yield LogEvent(0.0, END, "init_stop")
    resumed = record.get("resumed_at")
    yield LogEvent(0.0, START, "run_start", metadata={} if resumed is None else {"resumed_at": resumed})
    end = 0.0
    for entry in record["history"]:
        yield from _epoch(entry, end)
        end = _end_of(entry, end)
    end = max(end, record["seconds_total"] or 0.0)
    rate = record["images_per_second"]
    if rate["median"] is not None:
        yield LogEvent(end, POINT, "throughput", rate["median"], {"unit": "samples/s", "steps": rate["steps"]})
    yield LogEvent(end, END, "run_stop", metadata={"status": _status(record), "wirebench_status": record["status"]})


def _epoch(entry: Mapping[str, Any], begin: float) -> Iterator[LogEvent]:
    """One epoch's training and evaluation; MLPerf counts epochs from 1."""
    number, end = {"epoch_num": entry["epoch"] + 1}, _end_of(entry, begin)
    evaluating = entry.get("eval_seconds")  # None where nothing was evaluated, and in older records
    trained = end - (evaluating or 0.0)
    yield LogEvent(begin, START, "epoch_start", metadata=number)
    yield LogEvent(trained, END, "epoch_stop", metadata=number)
    if evaluating is not None:
        yield LogEvent(trained, START, "eval_start", metadata=number)
        yield LogEvent(end, END, "eval_stop", metadata=number)
    if entry["top1"] is not None:
        yield LogEvent(end, POINT, "eval_accuracy", entry["top1"], number)


def _end_of(entry: Mapping[str, Any], begin: float) -> float:
    total = entry.get("seconds_total")
    return begin + (entry["seconds"] or 0.0) if total is None else float(total)


def _setting(record: Mapping[str, Any]) -> dict[str, Any]:
    """What was run, by MLPerf's names where it has them; None for what is not known."""
    config, samples = record["config"], record.get("samples") or {}
    model, data, train = (config.get(section, {}) for section in ("model", "data", "train"))
    batch = data.get("batch_size")
    return {
        "submission_benchmark": f"{model.get('name')}_{data.get('name')}",
        "submission_division": "open",
        "submission_platform": _platform(record),
        "seed": train.get("seed"),
        "global_batch_size": None if batch is None else batch * record["world_size"],
        "gradient_accumulation_steps": train.get("accumulation"),
        "train_samples": samples.get("train"),
        "eval_samples": samples.get("test"),
        **_optimizer(config.get("optimizer", {}), record["world_size"]),
        "wirebench_composition": {name: config.get(name) for name in ("compressor", "scheduler", "collective")},
        "wirebench_bytes_per_step": record["bytes_per_step"],
    }


ADAMW = {
    "opt_adamw_beta_1": "momentum", "opt_adamw_beta_2": "beta2", "opt_adamw_epsilon": "eps",
    "opt_adamw_weight_decay": "weight_decay",
}  # fmt: skip
MUON = {"opt_weight_decay": "weight_decay", **ADAMW}
OPTIONS: Mapping[str, Mapping[str, str]] = {
    "sgd": {"sgd_opt_momentum": "momentum", "opt_weight_decay": "weight_decay"},
    "adamw": ADAMW,
    # MLPerf has no Muon and no Dion2. They update the matrices inside a model; the rest is AdamW's, with the momentum
    # as first beta.
    "muon": {"wirebench_muon_momentum": "momentum", **MUON},
    "dion2": {"wirebench_dion2_momentum": "momentum", "wirebench_dion2_fraction": "fraction", **MUON},
}
"""What each optimizer reads of its section: our option, by MLPerf's key."""


def _optimizer(section: Mapping[str, Any], workers: int) -> dict[str, Any]:
    rate, by_epochs = section.get("lr"), section.get("schedule") == "step"
    name = section.get("name", "sgd")  # of older records it was the only one
    return {
        "opt_name": name,
        "opt_base_learning_rate": rate * workers if rate is not None and section.get("scale_lr") else rate,
        "opt_learning_rate_warmup_epochs": section.get("warmup_epochs"),
        "opt_learning_rate_decay_schedule": section.get("schedule"),
        "opt_learning_rate_decay_boundary_epochs": section.get("milestones") if by_epochs else None,
        "opt_learning_rate_decay_factor": section.get("gamma") if by_epochs else None,
        **{key: section.get(option) for key, option in OPTIONS[name].items()},
    }


def _platform(record: Mapping[str, Any]) -> str:
    """Ranks and what they ran on, in words; of rank 0's machine where the record describes no other."""
    environment = record["environment"]
    kinds = dict.fromkeys(_device(host, record["device"]) for host in environment.get("hosts") or [environment])
    return f"{record['world_size']} ranks ({record['engine']}) on {' and '.join(kinds)}"


def _device(host: Mapping[str, Any], device: str) -> str:
    gpus, cpu = host.get("gpus") or [], host.get("cpu") or {}
    if device == "cuda" and gpus:
        return ", ".join(f"{gpus.count(kind)} x {kind}" for kind in dict.fromkeys(gpus))
    return f"{cpu.get('model') or 'an unknown CPU'}, {cpu.get('cores') or '?'} cores"


def _status(record: Mapping[str, Any]) -> str:
    """MLPerf's word: success where the run finished and its accuracy is at least what its config expects."""
    target, reached = record["config"].get("expected", {}).get("top1", 0.0), record["final"]["top1"]
    missed = bool(target) and (reached is None or reached < target)
    return "success" if record["status"] == "finished" and not missed else "aborted"
