"""The GPU sampler against a stand-in for NVIDIA's library."""

import time
from types import SimpleNamespace

import pytest
import torch

from wirebench.telemetry import gpu

CUDA = torch.device("cuda", 0)


class NVMLError(Exception):
    pass


class FakeLibrary:
    """Answers like pynvml: 300 W, one joule more at each question, 40 then 80 % busy."""

    NVMLError = NVMLError

    def __init__(self, unsupported=()):
        self.unsupported = unsupported
        self.millijoules = 0.0
        self.busy = 40

    def nvmlInit(self):
        self._answer("init")

    def nvmlDeviceGetHandleByUUID(self, identifier):
        self._answer("uuid")
        assert identifier == "GPU-1234"
        return "handle"

    def nvmlDeviceGetUtilizationRates(self, handle):
        self._answer("utilisation", handle)
        self.busy, busy = 80, self.busy
        return SimpleNamespace(gpu=busy)

    def nvmlDeviceGetMemoryInfo(self, handle):
        self._answer("memory", handle)
        return SimpleNamespace(used=3 * 10**9)

    def nvmlDeviceGetPowerUsage(self, handle):
        self._answer("power", handle)
        return 300_000

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        self._answer("energy", handle)
        self.millijoules += 1000
        return self.millijoules

    def nvmlSystemGetDriverVersion(self):
        self._answer("driver")
        return "580.1"

    def _answer(self, question, handle="handle"):
        assert handle == "handle"
        if question in self.unsupported:
            raise NVMLError(question)


@pytest.fixture
def library(monkeypatch):
    def install(*unsupported):
        fake = FakeLibrary(unsupported)
        monkeypatch.setattr(gpu, "pynvml", fake)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid="1234"))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Fake GPU")
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: 2_000_000)
        return fake

    return install


def measure(seconds=0.05):
    sampler = gpu.sampler(CUDA)
    assert isinstance(sampler, gpu.GpuSampler)
    sampler._interval_seconds = 0.01
    sampler.start()
    while not sampler._samples:  # its thread may be late
        time.sleep(0.001)
    time.sleep(seconds)
    result = sampler.stop()
    assert result is not None
    return result


def test_measures_everything_the_driver_knows(library):
    library()
    result = measure()
    assert result["samples"] >= 2
    assert result["utilisation_percent"]["max"] == 80
    assert 40 < result["utilisation_percent"]["mean"] < 80
    assert result["memory_mb"] == {"max": 3000.0}
    assert result["allocated_mb"] == {"max": 2.0}
    assert result["power_watts"] == {"mean": 300.0}
    assert (result["energy_joules"], result["energy_source"]) == (1.0, "counter")
    assert result["name"] == "Fake GPU"


def test_energy_falls_back_to_the_integral_of_power(library):
    library("energy")
    began = time.perf_counter()
    result = measure(0.1)
    elapsed = time.perf_counter() - began
    assert 300 * 0.1 <= result["energy_joules"] <= 300 * elapsed
    assert result["energy_source"] == "power"


def test_what_the_device_does_not_support_is_null(library):
    library("energy", "power", "utilisation", "memory")
    result = measure()
    assert result["energy_joules"] is result["energy_source"] is None
    assert result["power_watts"] == {"mean": None}
    assert result["utilisation_percent"] == {"mean": None, "max": None}
    assert result["memory_mb"] == {"max": None}


@pytest.mark.parametrize("failure", ["init", "uuid"])
def test_no_driver_no_measurement(library, failure):
    library(failure)
    sampler = gpu.sampler(CUDA)
    sampler.start()
    assert sampler.stop() is None


def test_a_cpu_has_no_sampler():
    assert isinstance(gpu.sampler(torch.device("cpu")), gpu.NullSampler)


def test_driver_version(library):
    library()
    assert gpu.driver_version() == "580.1"
    library("init")
    assert gpu.driver_version() is None
