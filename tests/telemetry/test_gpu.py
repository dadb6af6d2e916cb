"""The GPU sampler against a stand-in for NVIDIA's library."""

import functools
import threading
import time

import pytest
import torch

from tests.telemetry import fake_nvml
from wirebench.telemetry import gpu

CUDA = torch.device("cuda", 0)


@pytest.fixture
def library(monkeypatch):
    return functools.partial(fake_nvml.install, monkeypatch)


def started():
    """A sampler of which the first samples are taken."""
    sampler = gpu.sampler(CUDA)
    assert isinstance(sampler, gpu.GpuSampler)
    sampler._interval_seconds = 0.01
    sampler.start()
    while sampler._handle is not None and not sampler._samples:  # its thread may be late
        time.sleep(0.001)
    return sampler


def measure(seconds=0.05):
    sampler = started()
    time.sleep(seconds)
    return sampler.stop()


def test_measures_everything_the_driver_knows(library):
    fake = library()
    result = measure()
    assert result["samples"] >= 2
    assert result["utilisation_percent"]["max"] == 80
    assert 40 < result["utilisation_percent"]["mean"] < 80
    assert result["memory_mb"] == {"max": 3000.0}
    assert result["allocated_mb"] == {"max": 2.0}
    assert result["power_watts"] == {"mean": 300.0, "max": 300.0}
    assert (result["energy_joules"], result["energy_source"]) == (result["samples"], "counter"), "a joule a question"
    assert fake.asked.count("energy") == result["samples"] + 1, "one question at the start"
    assert (result["name"], result["uuid"], result["mig"], result["problem"]) == ("Fake GPU", "1234", False, None)


def test_a_reading_on_the_way_is_of_now(library):
    library()
    sampler = gpu.sampler(CUDA)
    assert isinstance(sampler, gpu.GpuSampler)
    sampler._interval_seconds = 600.0  # it is not waited for
    sampler.start()
    first, second = sampler.reading(), sampler.reading()
    assert 1 <= first["samples"] < second["samples"] and first["energy_joules"] < second["energy_joules"]
    assert second["problem"] is None and sampler.stop()["samples"] > second["samples"]


def test_sampling_is_timed(library, monkeypatch):
    fake = library()
    slow = fake.nvmlDeviceGetPowerUsage

    def power(handle):
        time.sleep(0.004)
        return slow(handle)

    monkeypatch.setattr(fake, "nvmlDeviceGetPowerUsage", power)
    result = measure(0.1)
    assert 0.004 * result["samples"] <= result["sampling_seconds"] <= result["seconds"]
    assert result["interval_seconds"] == 0.01


def test_energy_falls_back_to_the_integral_of_power(library):
    library("energy")
    began = time.perf_counter()
    result = measure(0.1)
    elapsed = time.perf_counter() - began
    assert 300 * 0.1 <= result["energy_joules"] <= 300 * elapsed
    assert result["energy_source"] == "power"
    assert result["problem"] is None, "what a GPU has never answered is no failure"


def test_a_counter_that_was_reset_is_no_measurement(library):
    fake = library()
    sampler = started()
    fake.millijoules = -5000.0
    result = sampler.stop()
    assert result["energy_source"] == "power" and result["energy_joules"] >= 0


def test_what_the_device_does_not_support_is_null(library):
    library("energy", "power", "utilisation", "memory")
    result = measure()
    assert result["energy_joules"] is result["energy_source"] is None
    assert result["power_watts"] == {"mean": None, "max": None}
    assert result["utilisation_percent"] == {"mean": None, "max": None}
    assert result["memory_mb"] == {"max": None}
    assert result["problem"] is None


def test_memory_that_is_no_number_is_null(library):
    library().used = None
    assert measure()["memory_mb"] == {"max": None}


def test_a_binding_without_a_function_costs_that_number(library, monkeypatch):
    monkeypatch.delattr(fake_nvml.FakeLibrary, "nvmlDeviceGetTotalEnergyConsumption")
    library()
    result = measure()
    assert result["energy_source"] == "power" and result["problem"] is None


def test_a_failure_in_mid_run_is_told_and_costs_what_it_concerns(library):
    fake = library()
    sampler = started()
    fake.unsupported = {"power", "energy", "utilisation", "memory"}
    time.sleep(0.05)
    result = sampler.stop()
    assert result["energy_joules"] is result["energy_source"] is None, "half of a run's joules are none"
    assert result["power_watts"]["max"] == 300.0 and result["memory_mb"]["max"] == 3000.0
    assert result["problem"].startswith("NVML failed: utilisation is not supported (")
    lost = int(result["problem"].split("(")[1].split()[0])
    assert 1 <= lost < result["samples"]


def test_one_missed_sample_does_not_cost_the_counter(library):
    fake = library()
    sampler = started()
    fake.unsupported = {"power"}
    sampler.reading()
    fake.unsupported = set()
    result = sampler.stop()
    assert result["energy_source"] == "counter" and result["problem"].startswith("NVML failed: power")


def test_a_driver_that_hangs_does_not_hang_the_run(library, monkeypatch):
    monkeypatch.setattr(gpu, "PATIENCE_SECONDS", 0.05)
    fake = library()
    sampler = started()
    asked, go_on = threading.Event(), threading.Event()

    def power(handle):
        asked.set()
        return go_on.wait(60) and 1

    monkeypatch.setattr(fake, "nvmlDeviceGetPowerUsage", power)
    assert asked.wait(60)
    result = sampler.stop()
    assert result["energy_joules"] is None and result["problem"].startswith("NVML does not answer (")
    go_on.set()


@pytest.mark.parametrize("failure", ["init", "uuid"])
def test_a_gpu_without_a_driver_to_ask_is_named(library, failure):
    library(failure)
    result = measure()
    assert (result["name"], result["samples"], result["energy_joules"]) == ("Fake GPU", 0, None)
    assert result["problem"] == f"NVML does not answer: {failure} is not supported"
    assert result["allocated_mb"] == {"max": 2.0}


@pytest.mark.parametrize(
    ("known", "mig", "memory"), [(("MIG-1234",), 0, 3000.0), (("GPU-1234",), 1, None)], ids=["instance", "whole"]
)
def test_a_part_of_a_gpu_has_no_energy_of_its_own(library, known, mig, memory):
    """The board's watts are those of other jobs too, and so is its memory."""
    fake = library(known=known, mig=mig)
    result = measure()
    assert result["mig"] and result["energy_joules"] is result["power_watts"]["mean"] is None
    assert result["memory_mb"] == {"max": memory}
    assert not {"power", "energy"} & set(fake.asked) and result["problem"] is None


def test_the_latest_sample_is_told_once(library):
    library()
    sampler = gpu.sampler(CUDA)
    assert isinstance(sampler, gpu.GpuSampler) and sampler.news() == {}
    sampler.start()
    sampler.stop()
    told = sampler.news()
    assert told.keys() == {"utilisation_percent", "memory_mb", "power_watts", "energy_joules"}
    assert told["power_watts"] == 300.0 and told["energy_joules"] >= 1
    assert sampler.news() == {}


def test_a_cpu_has_no_sampler():
    assert gpu.sampler(torch.device("cpu")) is None


def test_driver_version(library):
    library()
    assert gpu.driver_version() == "580.1"
    library("init")
    assert gpu.driver_version() is None
