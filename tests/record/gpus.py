"""What `gpu` is in a record: of all ranks, and as older records have it."""

from typing import Any

RANK_0: dict[str, Any] = {
    "name": "NVIDIA H200", "samples": 117, "utilisation_percent": {"mean": 56.4, "max": 95},
    "memory_mb": {"max": 16988.9}, "allocated_mb": {"max": 14270.8}, "power_watts": {"mean": 387.3},
    "energy_joules": 9000.0, "energy_source": "counter",
}  # fmt: skip


def device(uuid: str, *ranks: int, **changes: Any) -> dict[str, Any]:
    """An entry of `devices`."""
    more = {"host": "h", "uuid": uuid, "mig": False, "ranks": list(ranks), "seconds": 23.0, "problem": None}
    return RANK_0 | more | {"power_watts": {"mean": 400.0, "max": 500.0}} | changes


def all_ranks(*devices: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """As GpuWatch gives it, by default of two GPUs."""
    found: dict[str, Any] = {
        "devices": list(devices) or [device("a", 0), device("b", 1)],
        "ranks_without_gpu": [], "ranks_missing": [], "power_watts": 800.0, "energy_joules": 18000.0,
        "energy_source": "counter", "joules_per_sample": 1.5, "joules_per_point": 240.0,
        "sampling": {
            "interval_seconds": 0.2, "samples_per_second": 4.9, "seconds_per_sample": 0.0004, "share_of_time": 0.00196,
        },
    }  # fmt: skip
    return found | changes
