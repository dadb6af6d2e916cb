"""What a record says of its GPUs, whichever form it has: of all ranks' GPUs, or, in an older record, of rank 0's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

RANK_0_ONLY = "rank 0 only"


@dataclass(frozen=True)
class GpuUse:
    """Sums over the GPUs of a run; None where something is not known.

    gpus         how many of which: "2 x NVIDIA H200"
    ranks        whose they are, where that is not each rank's own: "rank 0 only"; '' where it is
    watts        mean power, summed over GPUs; most_watts: the largest sample of one GPU
    joules       of the whole run, evaluation and checkpoints included; source: counter or power
    per_sample   joules, by samples that were trained on; per_point: by percentage points of the final top-1 accuracy
    utilisation  percent, the mean over GPUs; most_memory_mb: the largest of one GPU
    sampling     the record's table on what sampling took; None in older records
    partly       why the joules leave out some ranks' GPUs; '' if they include all
    problems     what NVML did not answer, a line each
    """

    gpus: str
    ranks: str
    watts: float | None
    most_watts: float | None
    joules: float | None
    source: str | None
    per_sample: float | None
    per_point: float | None
    utilisation: float | None
    most_memory_mb: float | None
    sampling: Mapping[str, float | None] | None = None
    partly: str = ""
    problems: tuple[str, ...] = ()


def gpu_use(record: Mapping[str, Any]) -> GpuUse | None:
    """The GPUs of a valid record; None for a run without one."""
    gpu = record["gpu"]
    if not gpu:
        return None
    return _of_all(gpu) if "devices" in gpu else _of_rank_0(record, gpu)


def _of_all(gpu: Mapping[str, Any]) -> GpuUse:
    devices = gpu["devices"]
    names = dict.fromkeys(device["name"] for device in devices)
    kinds = ", ".join(f"{sum(device['name'] == name for device in devices)} x {name}" for name in names)
    whose = []
    if missing := gpu["ranks_missing"]:
        whose.append(f"without the GPUs of {_ranks(missing)}")
    if without := gpu["ranks_without_gpu"]:
        whose.append(f"{_ranks(without)} without a GPU")
    if shared := [device["ranks"] for device in devices if len(device["ranks"]) > 1]:
        whose.append(f"shared by {' and by '.join(map(_ranks, shared))}")
    utilisation = [device["utilisation_percent"]["mean"] for device in devices]
    known = [each for each in utilisation if each is not None]
    return GpuUse(
        gpus=kinds,
        ranks=", ".join(whose),
        watts=gpu["power_watts"],
        most_watts=_most(device["power_watts"]["max"] for device in devices),
        joules=gpu["energy_joules"],
        source=gpu["energy_source"],
        per_sample=gpu["joules_per_sample"],
        per_point=gpu["joules_per_point"],
        utilisation=sum(known) / len(known) if len(known) == len(utilisation) else None,
        most_memory_mb=_most(device["memory_mb"]["max"] for device in devices),
        sampling=gpu["sampling"],
        problems=tuple(
            f"{_ranks(device['ranks'])}, {device['name']}: {device['problem']}"
            for device in devices
            if device["problem"] is not None
        ),
    )


def _of_rank_0(record: Mapping[str, Any], gpu: Mapping[str, Any]) -> GpuUse:
    """A record from before all ranks were sampled. Virtual workers all use rank 0's GPU, so that it is all there is."""
    local, ranks = record["engine"] == "local", record["world_size"]
    whose = RANK_0_ONLY if ranks > 1 else ""
    if local:
        whose = f"shared by {_ranks(list(range(ranks)))}" if ranks > 1 else ""
    joules, top1 = gpu.get("energy_joules"), record["final"]["top1"]
    resumed = record.get("resumed_at") or 0
    batch = record["config"].get("data", {}).get("batch_size", 0)
    samples = (record.get("steps_done", 0) - resumed) * batch * (ranks if local else 1)
    whole = joules is not None and (local or ranks == 1) and not resumed
    return GpuUse(
        gpus=f"1 x {gpu['name']}",
        ranks=whose,
        watts=gpu["power_watts"]["mean"],
        most_watts=None,
        joules=joules,
        source=gpu.get("energy_source"),
        per_sample=joules / samples if joules is not None and samples > 0 else None,
        per_point=joules / (100 * top1) if whole and top1 else None,
        utilisation=gpu["utilisation_percent"]["mean"],
        most_memory_mb=gpu["memory_mb"]["max"],
        partly="" if local or ranks == 1 else RANK_0_ONLY,
    )


def _ranks(ranks: list[int]) -> str:
    """The ranks in words, consecutive ranks as a range."""
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"ranks {ranks[0]} to {ranks[-1]}"
    return f"rank{'s' if len(ranks) > 1 else ''} {' and '.join(map(str, ranks))}"


def _most(values: Any) -> float | None:
    return max((value for value in values if value is not None), default=None)
