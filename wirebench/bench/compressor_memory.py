"""Memory that one rank's compressor takes beside the gradient: what it keeps, and the height of a step."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

Step = Callable[[], object]
_LAST = "wirebench: the step that is measured"
_CPU = 0  # the profiler's number of the device type


class Memory(NamedTuple):
    """Bytes allocated since the method was built.

    held  before the step that is measured: state and buffers that are used again
    peak  the most at any time of that step, `held` included
    """

    held: int
    peak: int


def measure_memory(build: Callable[[], Step], warmup: int, device: torch.device) -> Memory:
    """Memory of the step that `build` returns, in the step after `warmup` others.

    On a CPU every allocation of a tensor is seen, also those inside of PyTorch's operators, by PyTorch's profiler; what
    others allocate (NumPy, Python) is not.
    """
    return _on_cuda(build, warmup, device) if device.type == "cuda" else _on_cpu(build, warmup)


def _on_cuda(build: Callable[[], Step], warmup: int, device: torch.device) -> Memory:
    before = torch.cuda.memory_allocated(device)
    step = build()
    for _ in range(warmup):
        step()
    torch.cuda.synchronize(device)
    held = torch.cuda.memory_allocated(device) - before
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return Memory(held, torch.cuda.max_memory_allocated(device) - before)


def _on_cpu(build: Callable[[], Step], warmup: int) -> Memory:
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with _hushed():
        profiler.start()
    try:
        step = build()
        for _ in range(warmup):
            step()
        with record_function(_LAST):
            step()
    finally:
        with _hushed():
            profiler.stop()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return _read(json.loads(path.read_text())["traceEvents"])


def _read(events: list[dict]) -> Memory:
    """Add up the allocations of a trace in the order of their times."""
    [last] = [event for event in events if event.get("name") == _LAST and event.get("ph") == "X"]
    begin, end = last["ts"], last["ts"] + last["dur"]
    changes = [e for e in events if e.get("name") == "[memory]" and e["args"]["Device Type"] == _CPU]
    total = held = peak = 0
    for event in sorted(changes, key=lambda e: (e["ts"], e["args"]["Ev Idx"])):
        total += event["args"]["Bytes"]
        if event["ts"] < begin:
            held = peak = total
        elif event["ts"] <= end:
            peak = max(peak, total)
    return Memory(held, peak)


@contextmanager
def _hushed() -> Iterator[None]:
    """Without what the profiler's C++ writes to standard error whenever it starts and stops."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
