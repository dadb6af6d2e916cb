"""What one GPU did during a run: utilisation, memory, power and energy, sampled through NVIDIA's management library."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import torch


class NullSampler:
    """Stands in where there is no GPU, or no driver to ask."""

    def start(self) -> None:
        """Nothing to start."""

    def stop(self) -> dict[str, Any] | None:
        """No measurement: None."""
        return None


class GpuSampler:
    """Samples one CUDA device from a thread of its own, from `start` to `stop`; `handle` is the library's for it.

    What the driver does not support reads None. Evaluation and checkpoints are included.
    """

    def __init__(self, device: torch.device, handle: Any, interval_seconds: float = 0.2) -> None:
        self._device, self._handle, self._interval_seconds = device, handle, interval_seconds
        self._samples = 0
        self._utilisation, self._memory_mb, self._power_watts = _Kept(), _Kept(), _Kept()
        self._sampled_joules = 0.0
        self._last: tuple[float, float | None] | None = None
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)
        self._start_joules: float | None = None

    def start(self) -> None:
        """Begin to sample."""
        self._start_joules = self._counter_joules()
        self._thread.start()

    def stop(self) -> dict[str, Any] | None:
        """End sampling and return the measurement.

        memory_mb is the whole device's, allocated_mb what this process's tensors took at most (10**6 bytes each).
        energy_source says whether energy_joules is the device's own counter or the integral of the sampled power.
        """
        self._finished.set()
        self._thread.join()
        self._sample()
        joules, source = self._energy()
        return {
            "name": torch.cuda.get_device_name(self._device),
            "samples": self._samples,
            "utilisation_percent": {"mean": self._utilisation.mean, "max": self._utilisation.most},
            "memory_mb": {"max": self._memory_mb.most},
            "allocated_mb": {"max": torch.cuda.max_memory_allocated(self._device) / 1e6},
            "power_watts": {"mean": self._power_watts.mean},
            "energy_joules": joules,
            "energy_source": source,
        }

    def _run(self) -> None:
        while not self._finished.is_set():
            self._sample()
            self._finished.wait(self._interval_seconds)

    def _sample(self) -> None:
        utilisation = _ask(lambda: pynvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
        memory_mb = _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(self._handle).used / 1e6)
        power_watts = _ask(lambda: pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3)
        self._samples += 1
        for kept, value in (
            (self._utilisation, utilisation), (self._memory_mb, memory_mb), (self._power_watts, power_watts),
        ):  # fmt: skip
            kept.add(value)
        before, self._last = self._last, (time.perf_counter(), power_watts)
        if before is not None and before[1] is not None and power_watts is not None:
            self._sampled_joules += (self._last[0] - before[0]) * (before[1] + power_watts) / 2

    def _counter_joules(self) -> float | None:
        return _ask(lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3)

    def _energy(self) -> tuple[float | None, str | None]:
        end_joules = self._counter_joules()
        if self._start_joules is not None and end_joules is not None:
            return end_joules - self._start_joules, "counter"
        if self._power_watts.count < self._samples:
            return None, None
        return self._sampled_joules, "power"


def sampler(device: torch.device) -> GpuSampler | NullSampler:
    """The sampler of `device`; the null one for a CPU and where the driver's library does not answer or know it."""
    if device.type != "cuda":
        return NullSampler()
    try:
        pynvml.nvmlInit()
        # The UUID names the same GPU whatever CUDA_VISIBLE_DEVICES hides or reorders.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    except pynvml.NVMLError:
        return NullSampler()
    return GpuSampler(device, handle)


def driver_version() -> str | None:
    """Version of the NVIDIA driver; None without one."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None


def _ask(question: Callable[[], float]) -> float | None:
    """The driver's answer; None where this device does not support the question."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


class _Kept:
    """Count, sum and maximum of what was sampled, where it is known."""

    def __init__(self) -> None:
        self.count, self._total = 0, 0.0
        self.most: float | None = None

    def add(self, value: float | None) -> None:
        if value is not None:
            self.count, self._total = self.count + 1, self._total + value
            self.most = value if self.most is None else max(self.most, value)

    @property
    def mean(self) -> float | None:
        return self._total / self.count if self.count else None
