"""Memory that a step frees stays with the process, so that the next step finds it there.

glibc gives freed memory back to the system: large blocks at once, the heap's end once 128 KB of it are free. A
training step frees and takes the same hundreds of megabytes again. Each page taken again is a page fault, and the
kernel clears it first. A step of ResNet-20 has up to 10,000 faults. Their number differs between processes, so the
ranks wait for the one that has most. The GNU C Library manual describes the options ("Malloc Tunable Parameters").
"""

import ctypes
import os

# malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_ROOM = 64 * 2**20


def keep_freed_memory() -> bool:
    """Make glibc's malloc keep freed memory; return whether the options were set.

    They are not set with another C library, or if the environment sets its own (MALLOC_..., GLIBC_TUNABLES).
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl and macOS have none
        return False
    # One heap for all threads: what the exchange's thread frees, the main thread takes.
    options = {_TRIM_THRESHOLD: 2**31 - 1, _MMAP_MAX: 0, _TOP_PAD: _ROOM, _ARENA_MAX: 1}
    return all(mallopt(option, value) == 1 for option, value in options.items())
