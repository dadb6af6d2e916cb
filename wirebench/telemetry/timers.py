"""Timers of the host and of a GPU: they take marks (points in time) without stopping the work that is timed."""

import time
from typing import Any

import torch


class HostTimer:
    """Takes marks, and tells the time between two of them once they are reached: perf_counter seconds."""

    def mark(self) -> Any:
        """A mark of now; on a GPU, of when its current stream has done the work given to it so far."""
        return time.perf_counter()

    def seconds(self, begin: Any, end: Any) -> float:
        """Seconds from one reached mark to another."""
        return float(end - begin)

    def reached(self, mark: Any) -> bool:
        """Whether that point is passed; does not wait."""
        return True

    def synchronize(self) -> None:
        """Wait until all marks are reached."""


class CudaTimer(HostTimer):
    """Marks of the device: events, recorded on the current stream of the calling thread."""

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


def timer_for(device: torch.device) -> HostTimer:
    """The timer of work on `device`: its own on a GPU, the host's on a CPU."""
    return CudaTimer(device) if device.type == "cuda" else HostTimer()
