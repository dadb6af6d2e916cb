"""Points in time, of the host or of a GPU, taken without stopping the work that is timed."""

import time
from typing import Any, Protocol

import torch


class DeviceTimer(Protocol):
    """Takes marks, and tells the time between two of them once they are reached."""

    def mark(self) -> Any:
        """Now; on a GPU, when its current stream gets here."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """From one reached mark to another."""
        ...

    def reached(self, mark: Any) -> bool:
        """Whether that point is passed."""
        ...

    def synchronize(self) -> None:
        """Wait until all marks are reached."""
        ...


class HostTimer:
    """Points in time of the host: perf_counter seconds."""

    def mark(self) -> float:
        """Now."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """The difference."""
        return end - begin

    def reached(self, mark: float) -> bool:
        """Always."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""


class CudaTimer:
    """Points in time of the device: events, recorded on the current stream of the calling thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        """An event behind the work that was given to the stream so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Between two events that are both reached."""
        return begin.elapsed_time(end) / 1000

    def reached(self, mark: torch.cuda.Event) -> bool:
        """Whether the device has passed it; does not wait."""
        return mark.query()

    def synchronize(self) -> None:
        """Wait for the device."""
        torch.cuda.synchronize(self._device)


def timer_for(device: torch.device) -> DeviceTimer:
    """DeviceTimer for work on `device`."""
    return CudaTimer(device) if device.type == "cuda" else HostTimer()
