"""Results of `wirebench bench collectives` as nccl-tests writes its own: the JSON of `all_reduce_perf -J FILE`.

Keys, units and types follow nccl-tests 2.19 (src/util.cu, JSON version 3): sizes in bytes, times in microseconds,
bandwidths in GB/s (10^9 bytes), truth values as the texts "true" and "false". Keys without a counterpart here are null
or left out; docs/formats.md lists them.
"""

import json
import math
import shlex
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from wirebench.record.collective_results import AllReduceResult
from wirebench.utils import user_files

VERSION = 3
CALENDAR = "%Y-%m-%d %H:%M:%S"
NO_ROOT = f"{-1:6d}"
"""What nccl-tests prints as the root of a collective that has none."""
WARM_UP = 2
"""Calls of a collective that are not timed: the check of its sum, and the one that sets the length of the loops."""


def document(
    header: Mapping[str, Any], results: Sequence[AllReduceResult], repeats: int, ended: datetime
) -> dict[str, Any]:
    """All results of one benchmark; `experiment_name` of each says which collective it is, in which wire format.

    header   as the benchmark's own file has it
    repeats  turns of each collective, at most
    ended    when the last of them was done
    """
    environment = header["environment"]
    wrong, busbw = sum(not each.right for each in results), [each.busbw / 1e9 for each in results]
    return {
        "version": VERSION,
        "start_time": datetime.fromisoformat(environment["utc"]).astimezone().strftime(CALENDAR),
        "args": shlex.split(environment["command"]),
        "env": [f"{name}={value}" for name, value in environment["variables"].items()],
        "nccl_version": _nccl_code(environment["versions"]["nccl"]),
        "config": _config(header, [each.num_bytes for each in results], repeats),
        "results": [_row(each) for each in results],
        "out_of_bounds": {"count": wrong, "okay": _text(not wrong)},
        "average_bus_bandwidth": {"bandwidth": statistics.mean(busbw) if busbw else 0.0, "okay": "unchecked"},
        "errors": [],
        "end_time": ended.astimezone().strftime(CALENDAR),
    }


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write a document in one piece; UserError where the file cannot be written."""
    user_files.write(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _config(header: Mapping[str, Any], sizes: Sequence[int], repeats: int) -> dict[str, Any]:
    # Sizes are a list here, so neither of nccl-tests' two ways of stepping from the least to the greatest is written.
    return {
        "nthreads": 1,
        "ngpus": 1,
        "minimum_bytes": min(sizes, default=0),
        "maximum_bytes": max(sizes, default=0),
        "warmup_iters": WARM_UP,
        "iterations": repeats,
        "aggregated_iterations": 1,
        "validation": 1,
        "graph": 0,
        "blocking_collectives": _text(True),
        "per_iter_timing": _text(True),
        "per_iter_skip": 0,
        "parallel_init": _text(False),
        "devices": _devices(header),
    }


def _devices(header: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for every rank; a rank's position among its host's ranks is the number of its GPU."""
    machines = {rank: host for host in header["environment"]["hosts"] for rank in host["ranks"]}
    on_gpu = header["environment"]["device"].startswith("cuda")
    seen: dict[str, int] = {}
    rows = []
    for peer in header["ranks"]:
        place = seen[peer["host"]] = seen.get(peer["host"], -1) + 1
        machine = machines[peer["rank"]]
        gpus = machine["gpus"]
        info = (gpus[place % len(gpus)] if on_gpu and gpus else machine["cpu"]["model"]) or ""
        row = {"rank": peer["rank"], "group": 0, "pid": peer["pid"], "hostname": peer["host"]}
        rows.append({**row, "device": place if on_gpu else None, "device_hex": None, "device_info": info})
    return rows


def _row(result: AllReduceResult) -> dict[str, Any]:
    # The sum replaces the summand, so the row is `in_place`; nccl-tests writes null too where it has only one of both.
    return {
        "size": result.num_bytes,
        "count": result.items,
        "type": "float",
        "redop": "sum",
        "root": NO_ROOT,
        "out_of_place": None,
        "in_place": {
            "time": result.median * 1e6,
            "alg_bw": result.algbw / 1e9,
            "bus_bw": result.busbw / 1e9,
            "nwrong": 0.0 if result.right else 1.0,
        },
        "in_place_per_iter": _per_iteration([seconds * 1e6 for seconds in result.seconds]),
        "actual_iterations": len(result.seconds),
        "experiment_name": result.label,
    }


def _per_iteration(times: Sequence[float]) -> dict[str, Any]:
    """Statistics of the repeats by nccl-tests' own rules: nearest rank, and the deviation of a whole population."""
    ordered, mean, deviation = sorted(times), statistics.fmean(times), statistics.pstdev(times)

    def nearest_rank(percent: int) -> float:
        return ordered[math.ceil(len(ordered) * percent / 100) - 1]

    return {
        "skipped_iterations": 0,
        "min_us": ordered[0],
        "max_us": ordered[-1],
        "avg_us": mean,
        "p50_us": ordered[len(ordered) // 2],
        "p95_us": nearest_rank(95),
        "p99_us": nearest_rank(99),
        "stdev_us": deviation,
        "cv_pct": 100 * deviation / mean if mean > 0 else 0.0,
        "times_us": list(times),
    }


def _nccl_code(version: str | None) -> int | None:
    """NCCL's own number of a version such as 2.27.3; None where there is no NCCL."""
    if version is None:
        return None
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    return major * 10_000 + minor * 100 + patch


def _text(value: bool) -> str:
    return "true" if value else "false"
