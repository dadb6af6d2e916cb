"""Freed memory stays with the process: a step that takes it again costs no page faults."""

import os
import subprocess
import sys

import pytest

from wirebench.utils.heap import keep_freed_memory

# Each turn takes and frees 64 MB, in blocks that glibc would otherwise map and give back.
FAULTS = """
import resource, sys
import numpy
from wirebench.utils.heap import keep_freed_memory

told = keep_freed_memory() if sys.argv[1] == "keep" else False
def turn():
    blocks = [numpy.ones(100_000, numpy.float32) for _ in range(160)]
    del blocks
for _ in range(3):
    turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    turn()
print(told, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(how: str, **wishes: str) -> tuple[bool, int]:
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_") and k != "GLIBC_TUNABLES"}
    command = [sys.executable, "-c", FAULTS, how]
    done = subprocess.run(command, env=plain | wishes, capture_output=True, text=True, check=True)
    told, faults = done.stdout.split()
    return told == "True", int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's malloc is told, which other systems lack")
def test_a_second_turn_takes_no_new_pages() -> None:
    told, faults = _faults("keep")
    assert told
    assert faults < 500, "20 turns of 64 MB: 327,680 pages if all were new"
    # How much glibc gives back by default depends on its version and on the kernel's huge pages. A block that is mapped
    # by itself always goes back, so that this number shows what the count of faults would see.
    assert _faults("as it is", MALLOC_MMAP_THRESHOLD_="131072")[1] > 100 * 500


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_environments_own_wish_is_left_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    assert keep_freed_memory() is False
