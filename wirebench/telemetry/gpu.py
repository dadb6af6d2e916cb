"""What one GPU did during a run: utilisation, memory, power and energy, sampled through NVIDIA's management library."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pynvml
import torch

INTERVAL_SECONDS = 0.2
PATIENCE_SECONDS = 5.0
"""How long to wait for a driver that does not answer, as after a GPU has failed."""


class GpuSampler:
    """Samples one CUDA device from a thread of its own, from `start` to `stop`, evaluation and checkpoints included.

    device   which CUDA device; uuid: its name for the driver, without the prefix GPU- or MIG-
    handle   NVML's handle of it; None if NVML does not answer: then `refused` is the reason, and nothing is sampled
    part     'instance' of a MIG instance, 'gpu' of a GPU that is split into instances. Power and energy would include
             other jobs, as would the memory of a split GPU, so they are None

    Readings that the driver does not support are None. From `start` on only the thread waits for the driver, which may
    hang.
    """

    def __init__(
        self, device: torch.device, uuid: str, handle: Any, refused: str | None = None, part: str | None = None
    ) -> None:
        self._device, self._uuid, self._handle, self._part = device, uuid, handle, part
        self._interval_seconds = INTERVAL_SECONDS
        self._problem, self._hangs = refused, False
        self._samples = self._incomplete = 0
        self._answered: set[str] = set()
        self._fails = False
        self._kept = {name: _Kept() for name in ("utilisation_percent", "memory_mb", "power_watts")}
        self._latest: dict[str, float] = {}
        self._sampled_joules = self._sampling_seconds = 0.0
        self._last: tuple[float, float | None] | None = None
        self._began = time.perf_counter()
        self._start_joules: float | None = None
        self._counted_joules: float | None = None
        self._sampled, self._wake, self._finished = threading.Condition(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu-sampler", daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._began = time.perf_counter()
        if self._handle is not None:
            self._start_joules = self._counter_joules()
            self._thread.start()

    def news(self) -> dict[str, float]:
        """The latest sample, by name, where it is newer than the last answer; {} otherwise. Asks the driver nothing."""
        latest, self._latest = self._latest, {}
        return latest

    def reading(self) -> dict[str, Any]:
        """The measurement from `start` until now.

        memory_mb is the whole device's, allocated_mb what this process's tensors took at most (10**6 bytes each).
        energy_source says whether energy_joules is the device's own counter or the integral of the sampled power.
        problem says what the driver failed to answer, None where it answered. sampling_seconds is the time that all
        samples took.
        """
        if self._thread.is_alive() and not self._hangs:
            wanted = self._samples + 1
            self._wake.set()
            with self._sampled:
                self._hangs = not self._sampled.wait_for(lambda: self._samples >= wanted, PATIENCE_SECONDS)
        return self._measurement()

    def stop(self) -> dict[str, Any]:
        """End sampling and return the last reading."""
        self._finished.set()
        self._wake.set()
        if self._thread.is_alive() and not self._hangs:
            self._thread.join(PATIENCE_SECONDS)
            self._hangs = self._thread.is_alive()
        return self._measurement()

    def _measurement(self) -> dict[str, Any]:
        if self._hangs:
            self._problem = self._problem or "NVML does not answer"
        with self._sampled:
            joules, source = self._energy()
            busy, memory, power = self._kept.values()
            told = f"{self._problem} ({self._incomplete} of {self._samples} samples are incomplete)"
            return {
                "uuid": self._uuid,
                "name": torch.cuda.get_device_name(self._device),
                "mig": self._part is not None,
                "samples": self._samples,
                "seconds": time.perf_counter() - self._began,
                "utilisation_percent": {"mean": busy.mean, "max": busy.most},
                "memory_mb": {"max": memory.most},
                "allocated_mb": {"max": torch.cuda.max_memory_allocated(self._device) / 1e6},
                "power_watts": {"mean": power.mean, "max": power.most},
                "energy_joules": joules,
                "energy_source": source,
                "problem": told if self._problem and self._samples else self._problem,
                "sampling_seconds": self._sampling_seconds,
                "interval_seconds": self._interval_seconds,
            }

    def _run(self) -> None:
        over = False
        while not over:
            over = self._finished.is_set()  # one more sample is taken after it was set
            self._sample()
            if not over:
                self._wake.wait(self._interval_seconds)
                self._wake.clear()

    def _sample(self) -> None:
        began, self._fails = time.perf_counter(), False
        values = {name: self._ask(name, question) for name, question in self._questions().items()}
        counted = self._counter_joules()
        now = time.perf_counter()
        with self._sampled:
            self._samples += 1
            self._incomplete += self._fails
            self._counted_joules = self._since_start(counted)
            for name, value in values.items():
                self._kept[name].add(value)
            watts = values.get("power_watts")
            before, self._last = self._last, (now, watts)
            if before is not None and before[1] is not None and watts is not None:
                self._sampled_joules += (now - before[0]) * (before[1] + watts) / 2
            told: Mapping[str, float | None] = {**values, "energy_joules": self._counted_joules}
            self._latest = {name: value for name, value in told.items() if value is not None}
            self._sampling_seconds += now - began
            self._sampled.notify_all()

    def _questions(self) -> dict[str, Callable[[], float]]:
        """The driver queries of a sample, by name."""
        handle = self._handle
        asked: dict[str, Callable[[], float]] = {
            "utilisation_percent": lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        }
        if self._part != "gpu":
            asked["memory_mb"] = lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used / 1e6
        if self._part is None:
            asked["power_watts"] = lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        return asked

    def _counter_joules(self) -> float | None:
        if self._part is not None:
            return None
        return self._ask("energy_joules", lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3)

    def _since_start(self, joules: float | None) -> float | None:
        """Joules since `start`, from the counter; None if a reading is missing, or the counter has been reset."""
        if joules is None or self._start_joules is None or joules < self._start_joules:
            return None
        return joules - self._start_joules

    def _energy(self) -> tuple[float | None, str | None]:
        if self._hangs or not self._samples:
            return None, None
        if self._counted_joules is not None:
            return self._counted_joules, "counter"
        if self._kept["power_watts"].count < self._samples:
            return None, None
        return self._sampled_joules, "power"

    def _ask(self, name: str, question: Callable[[], float]) -> float | None:
        """The driver's answer; None where it has none. A failure of what it has answered before is noted."""
        try:
            answer = question()
        except (pynvml.NVMLError, TypeError, ValueError, AttributeError, OSError) as error:
            # The others are what a binding raises that lacks a function, or that has no number to give.
            if name in self._answered:
                self._fails, self._problem = True, self._problem or f"NVML failed: {error}"
            return None
        self._answered.add(name)
        return answer


def sampler(device: torch.device) -> GpuSampler | None:
    """The sampler of `device`; None for a CPU."""
    if device.type != "cuda":
        return None
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    handle, refused = None, ""
    # The UUID names the same GPU whatever CUDA_VISIBLE_DEVICES hides or reorders.
    for prefix in ("GPU", "MIG"):
        try:
            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"{prefix}-{uuid}")
        except pynvml.NVMLError as error:
            refused = refused or f"NVML does not answer: {error}"
            continue
        return GpuSampler(device, uuid, handle, part="instance" if prefix == "MIG" else _split(handle))
    return GpuSampler(device, uuid, None, refused)


def driver_version() -> str | None:
    """Version of the NVIDIA driver; None without one."""
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError:
        return None


def _split(handle: Any) -> str | None:
    """'gpu' for a GPU that is split into MIG instances, None for another one."""
    try:
        return "gpu" if pynvml.nvmlDeviceGetMigMode(handle)[0] else None
    except pynvml.NVMLError:  # GPUs without MIG
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
