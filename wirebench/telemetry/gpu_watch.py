"""The GPUs of all ranks: each rank samples its own, and rank 0 gets them all, each GPU once."""

from collections.abc import Mapping, Sequence
from typing import Any

from wirebench.comm.engine import Engine
from wirebench.comm.peers import gather
from wirebench.telemetry.gpu import GpuSampler

SCALARS = ("utilisation_percent", "power_watts", "memory_mb", "energy_joules")


class GpuWatch:
    """Samples this process's GPU and gathers the readings of all ranks.

    own       None where the process has no GPU
    anywhere  whether a rank of the job may use a GPU, alike on all ranks: without one nothing is gathered
    """

    def __init__(self, engine: Engine, own: GpuSampler | None, anywhere: bool) -> None:
        self._engine, self._own, self._anywhere = engine, own, anywhere

    def start(self) -> None:
        """Begin to sample."""
        if self._own is not None:
            self._own.start()

    def news(self) -> dict[str, float]:
        """Scalars of this process's GPU, by TensorBoard's names; {} where there is no sample since the last answer."""
        news = self._own.news() if self._own is not None else {}
        return {f"gpu/{name}": value for name, value in news.items()}

    def so_far(self, samples: int) -> dict[str, float]:
        """Scalars of all ranks' GPUs from `start` until now; every rank calls it. See `scalars`."""
        found = self._gathered(self._own.reading() if self._own else None) if self._anywhere else None
        return scalars(summary(found, samples, None)) if found else {}

    def stop(self, samples: int, top1: float | None, alone: bool = False) -> dict[str, Any] | None:
        """End sampling; the record's `gpu`, None where no rank has a GPU. Every rank calls it, unless `alone`.

        samples  that all ranks have trained on meanwhile
        top1     the accuracy that the whole run has reached, as a share; None if there is none
        alone    only this process's GPU: the others may not answer
        """
        reading = self._own.stop() if self._own else None
        if not self._anywhere:
            return None
        found = [self._mine(reading)] if alone else self._gathered(reading)
        return summary(found, samples, top1, self._engine.size)

    def _mine(self, reading: dict[str, Any] | None) -> dict[str, Any]:
        here = self._engine.peers[self._engine.ranks[0]].host
        return {"host": here, "ranks": list(self._engine.ranks), "reading": reading}

    def _gathered(self, reading: dict[str, Any] | None) -> list[dict[str, Any]]:
        mine = self._mine(reading)
        return gather(self._engine.communicators[0], mine) if self._engine.distributed else [mine]


def summary(
    found: Sequence[Mapping[str, Any]], samples: int, top1: float | None, world_size: int | None = None
) -> dict[str, Any] | None:
    """The record's `gpu` (docs/record.md) of all processes' readings; None where none has a GPU.

    found       host, ranks and reading of each process; the reading is None for a process without a GPU
    world_size  ranks of the job, where `found` may lack some
    """
    by_gpu: dict[str, list[Mapping[str, Any]]] = {}
    for each in found:
        if each["reading"] is not None:
            by_gpu.setdefault(each["reading"]["uuid"], []).append(each)
    if not by_gpu:
        return None
    devices = [_device(those) for those in by_gpu.values()]
    told = {rank for each in found for rank in each["ranks"]}
    missing = sorted(set(range(world_size or 0)) - told)
    joules = None if missing else _total(each["energy_joules"] for each in devices)
    sources = dict.fromkeys(each["energy_source"] for each in devices)
    return {
        "devices": devices,
        "ranks_without_gpu": [rank for each in found if each["reading"] is None for rank in each["ranks"]],
        "ranks_missing": missing,
        "power_watts": None if missing else _total(each["power_watts"]["mean"] for each in devices),
        "energy_joules": joules,
        "energy_source": None if joules is None else " and ".join(map(str, sources)),
        "joules_per_sample": joules / samples if joules is not None and samples else None,
        "joules_per_point": joules / (100 * top1) if joules is not None and top1 else None,
        "sampling": _sampling([each["reading"] for each in found if each["reading"] is not None]),
    }


def scalars(gpu: Mapping[str, Any] | None) -> dict[str, float]:
    """What TensorBoard shows of a record's `gpu`: sums over all GPUs as gpu/all/NAME, each GPU as gpu/INDEX/NAME."""
    if gpu is None:
        return {}
    told = {f"gpu/all/{name}": gpu[name] for name in ("power_watts", "energy_joules", "joules_per_sample")}
    told["gpu/all/sampling_share"] = gpu["sampling"]["share_of_time"]
    for index, device in enumerate(gpu["devices"]):
        parts = {name: device[name] for name in SCALARS}
        parts |= {"utilisation_percent": device["utilisation_percent"]["mean"]}
        parts |= {"power_watts": device["power_watts"]["mean"], "memory_mb": device["memory_mb"]["max"]}
        told |= {f"gpu/{index}/{name}": value for name, value in parts.items()}
    return {name: value for name, value in told.items() if value is not None}


def _device(those: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One GPU, from the readings of all processes that used it; the process that watched longest gives its energy.

    Each process reads the whole device's counters, so that a sum would count it several times.
    """
    readings = [each["reading"] for each in those]
    known = [each for each in readings if each["energy_joules"] is not None]
    main = max(known or readings, key=lambda reading: reading["seconds"])
    problems = dict.fromkeys(each["problem"] for each in readings if each["problem"] is not None)
    return {
        "host": those[0]["host"],
        "uuid": main["uuid"],
        "name": main["name"],
        "mig": main["mig"],
        "ranks": sorted(rank for each in those for rank in each["ranks"]),
        "samples": main["samples"],
        "seconds": main["seconds"],
        "utilisation_percent": main["utilisation_percent"],
        "memory_mb": {"max": max((each["memory_mb"]["max"] or 0.0 for each in readings), default=0.0) or None},
        "allocated_mb": {"max": sum(each["allocated_mb"]["max"] for each in readings)},
        "power_watts": main["power_watts"],
        "energy_joules": main["energy_joules"],
        "energy_source": main["energy_source"],
        "problem": "; ".join(problems) or None,
    }


def _sampling(readings: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """What sampling took: means over all samples of all processes, and the largest share of a process's time."""
    samples = sum(each["samples"] for each in readings)
    shares = [each["sampling_seconds"] / each["seconds"] for each in readings if each["seconds"]]
    spent, passed = (sum(each[name] for each in readings) for name in ("sampling_seconds", "seconds"))
    return {
        "interval_seconds": readings[0]["interval_seconds"],
        "samples_per_second": samples / passed if passed else None,
        "seconds_per_sample": spent / samples if samples else None,
        "share_of_time": max(shares, default=None),
    }


def _total(values: Any) -> float | None:
    """The sum; None where one is not known."""
    every = list(values)
    return None if None in every else sum(every)
