"""The GPUs of all ranks in one record: each GPU once, whoever shares it, and what is missing is said."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.helpers import Gathering
from tests.telemetry import fake_nvml
from wirebench.record.gpu_use import gpu_use
from wirebench.telemetry import gpu
from wirebench.telemetry.gpu_watch import GpuWatch, scalars, summary


def reading(uuid: str = "a", joules: float | None = 900.0, **changes: Any) -> dict[str, Any]:
    """As GpuSampler gives it, of three seconds at 300 W."""
    return {
        "uuid": uuid, "name": "H200", "mig": False, "samples": 15, "seconds": 3.0,
        "utilisation_percent": {"mean": 60.0, "max": 90}, "memory_mb": {"max": 5000.0}, "allocated_mb": {"max": 1000.0},
        "power_watts": {"mean": 300.0, "max": 350.0}, "energy_joules": joules,
        "energy_source": None if joules is None else "counter", "problem": None, "sampling_seconds": 0.03,
        "interval_seconds": 0.2, **changes,
    }  # fmt: skip


def process(rank: int, read: dict[str, Any] | None, host: str = "h0") -> dict[str, Any]:
    return {"host": host, "ranks": [rank], "reading": read}


def summed(*found: dict[str, Any], samples: int = 100, top1: float | None = 0.75, size: int = 2) -> dict[str, Any]:
    told = summary(found, samples, top1, size)
    assert told is not None
    return told


def test_two_gpus_add_up():
    told = summed(process(0, reading("a")), process(1, reading("b", 600.0), "h1"))
    assert [(each["host"], each["uuid"], each["ranks"]) for each in told["devices"]] == [
        ("h0", "a", [0]),
        ("h1", "b", [1]),
    ]
    assert (told["energy_joules"], told["energy_source"], told["power_watts"]) == (1500.0, "counter", 600.0)
    assert (told["joules_per_sample"], told["joules_per_point"]) == (15.0, 20.0)
    assert told["ranks_missing"] == told["ranks_without_gpu"] == []


def test_a_gpu_that_ranks_share_counts_once_even_under_two_host_names():
    longer = reading("a", 950.0, seconds=3.2, memory_mb={"max": 4000.0})
    told = summed(process(0, reading("a")), process(1, longer, "h1"))
    [device] = told["devices"]
    assert (device["ranks"], device["host"]) == ([0, 1], "h0")
    assert told["energy_joules"] == 950.0, "of the process that watched longest"
    assert (told["power_watts"], told["joules_per_sample"]) == (300.0, 9.5)
    assert (device["memory_mb"]["max"], device["allocated_mb"]["max"]) == (5000.0, 2000.0), "the device's, the ranks'"


def test_a_rank_without_a_gpu_is_named_and_costs_no_total():
    told = summed(process(0, None), process(1, reading("b")))
    assert (told["ranks_without_gpu"], told["energy_joules"]) == ([0], 900.0)
    assert summary([process(0, None), process(1, None)], 100, None, 2) is None


def test_a_total_of_some_gpus_is_none():
    told = summed(process(0, reading("a")), process(1, reading("b", None, problem="NVML failed: lost")))
    assert (
        told["energy_joules"] is told["energy_source"] is told["joules_per_sample"] is told["joules_per_point"] is None
    )
    assert told["power_watts"] == 600.0 and told["devices"][0]["energy_joules"] == 900.0
    assert [each["problem"] for each in told["devices"]] == [None, "NVML failed: lost"]
    unknown = {"mean": None, "max": None}
    told = summed(process(0, reading("a")), process(1, reading("b", power_watts=unknown, memory_mb={"max": None})))
    assert told["power_watts"] is None and told["energy_joules"] == 1800.0
    assert told["devices"][1]["memory_mb"] == {"max": None}


def test_of_two_on_one_gpu_the_one_that_measured_counts():
    broken = reading("a", None, seconds=4.0, problem="NVML does not answer")
    told = summed(process(0, broken), process(1, reading("a")))
    assert told["energy_joules"] == 900.0 and told["devices"][0]["problem"] == "NVML does not answer"


def test_ranks_that_did_not_answer_leave_no_totals():
    told = summed(process(0, reading("a")), size=3)
    assert told["ranks_missing"] == [1, 2]
    assert told["energy_joules"] is told["power_watts"] is None and told["devices"][0]["energy_joules"] == 900.0


def test_sources_that_differ_are_both_said():
    told = summed(process(0, reading("a")), process(1, reading("b", 600.0, energy_source="power")))
    assert told["energy_source"] == "counter and power"


def test_nothing_is_divided_by_nothing():
    told = summed(process(0, reading("a", seconds=0.0, samples=0)), samples=0, top1=0.0, size=1)
    assert told["joules_per_sample"] is told["joules_per_point"] is told["sampling"]["seconds_per_sample"] is None
    assert told["sampling"]["share_of_time"] is None
    assert summed(process(0, reading()), top1=None, size=1)["joules_per_point"] is None


def test_what_sampling_took():
    slow = reading("b", sampling_seconds=0.3, samples=10, seconds=2.0)
    assert summed(process(0, reading("a")), process(1, slow))["sampling"] == {
        "interval_seconds": 0.2,
        "samples_per_second": 25 / 5,
        "seconds_per_sample": pytest.approx(0.33 / 25),
        "share_of_time": pytest.approx(0.15),
    }


def test_scalars_are_sums_and_each_gpu():
    told = scalars(summed(process(0, reading("a")), process(1, reading("b", None))))
    assert told["gpu/all/power_watts"] == 600.0 and "gpu/all/energy_joules" not in told
    assert told["gpu/0/energy_joules"] == 900.0 and "gpu/1/energy_joules" not in told
    assert told["gpu/1/utilisation_percent"] == 60.0 and told["gpu/1/memory_mb"] == 5000.0
    assert scalars(None) == {}


def watch(monkeypatch: pytest.MonkeyPatch, other: dict[str, Any], device: str = "cuda") -> tuple[GpuWatch, Gathering]:
    fake_nvml.install(monkeypatch, uuid="1234")
    communicator, peers = Gathering(other), [SimpleNamespace(host="h0"), SimpleNamespace(host="h1")]
    engine: Any = SimpleNamespace(distributed=True, ranks=(0,), size=2, communicators=[communicator], peers=peers)
    return GpuWatch(engine, gpu.sampler(torch.device(device)), anywhere=True), communicator


def test_readings_are_gathered_on_the_way_and_at_the_end(monkeypatch):
    seen, communicator = watch(monkeypatch, process(1, reading("b", 600.0), "h1"))
    seen.start()
    on_the_way = seen.so_far(10)
    assert on_the_way["gpu/all/power_watts"] == 600.0 and on_the_way["gpu/1/energy_joules"] == 600.0
    assert seen.news()["gpu/power_watts"] == 300.0, "its own, between the gatherings"
    told = seen.stop(100, 0.5)
    assert told is not None and communicator.calls == 2
    assert [each["uuid"] for each in told["devices"]] == ["1234", "b"]
    assert told["energy_joules"] == told["devices"][0]["energy_joules"] + 600.0


def test_a_rank_on_a_cpu_gathers_what_the_others_measured(monkeypatch):
    seen, _ = watch(monkeypatch, process(1, reading("b")), "cpu")
    seen.start()
    assert seen.news() == {}
    told = seen.stop(100, None)
    assert told is not None and (told["ranks_without_gpu"], told["energy_joules"]) == ([0], 900.0)


def test_after_a_run_that_diverged_nobody_is_asked(monkeypatch):
    seen, communicator = watch(monkeypatch, process(1, reading("b")))
    seen.start()
    told = seen.stop(100, None, alone=True)
    assert told is not None and told["ranks_missing"] == [1] and communicator.calls == 0


def test_without_a_gpu_anywhere_nothing_is_sent():
    engine: Any = SimpleNamespace(distributed=True, communicators=[], ranks=(0,))
    seen = GpuWatch(engine, None, anywhere=False)
    seen.start()
    assert seen.so_far(1) == {} and seen.stop(1, None) is None


def test_virtual_workers_share_the_gpu_of_their_process(monkeypatch):
    fake_nvml.install(monkeypatch, uuid="1234")
    engine: Any = SimpleNamespace(
        distributed=False, ranks=(0, 1, 2), size=3, communicators=[], peers=[SimpleNamespace(host="h")] * 3
    )
    seen = GpuWatch(engine, gpu.sampler(torch.device("cuda", 0)), anywhere=True)
    seen.start()
    told = seen.stop(10, None)
    assert told is not None and told["devices"][0]["ranks"] == [0, 1, 2] and told["ranks_missing"] == []
    use = gpu_use({"gpu": told})
    assert use is not None and use.ranks == "shared by ranks 0 to 2" and use.partly == ""
