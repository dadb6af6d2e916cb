"""A stand-in for NVIDIA's management library: it answers like pynvml, of as many GPUs as a test has."""

from types import SimpleNamespace
from typing import Any

import torch

from wirebench.telemetry import gpu


class NVMLError(Exception):
    pass


class FakeLibrary:
    """Each GPU takes 300 W, has used one joule more at each question, and is 40 then 80 % busy.

    unsupported  names of questions that are refused; a test may change it while sampling
    known        handles by identifier
    """

    NVMLError = NVMLError

    def __init__(self, unsupported=(), known=("GPU-1234",), mig=0):
        self.unsupported, self.known, self.mig = set(unsupported), known, mig
        self.millijoules = 0.0
        self.busy = 40
        self.used: Any = 3 * 10**9
        self.asked: list[str] = []

    def nvmlInit(self):
        self._answer("init")

    def nvmlDeviceGetHandleByUUID(self, identifier):
        self._answer("uuid")
        if identifier not in self.known:
            raise NVMLError("Not Found")
        return identifier

    def nvmlDeviceGetMigMode(self, handle):
        self._answer("mig")
        return [self.mig, self.mig]

    def nvmlDeviceGetUtilizationRates(self, handle):
        self._answer("utilisation", handle)
        self.busy, busy = 80, self.busy
        return SimpleNamespace(gpu=busy)

    def nvmlDeviceGetMemoryInfo(self, handle):
        self._answer("memory", handle)
        return SimpleNamespace(used=self.used)

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

    def _answer(self, question, handle=None):
        assert handle is None or handle in self.known
        self.asked.append(question)
        if question in self.unsupported:
            raise NVMLError(f"{question} is not supported")


def install(monkeypatch, *unsupported, uuid="1234", **options):
    """Put a library and the CUDA device that it knows in the place of what there is; returns the library."""
    fake = FakeLibrary(unsupported, **options)
    monkeypatch.setattr(gpu, "pynvml", fake)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(uuid=uuid))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Fake GPU")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _device: 2_000_000)
    return fake
