"""Kernels compile for a GPU, on a machine without one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="needs Triton: pip install triton")
ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.slow
def test_every_kernel_compiles():
    """Each that a module launches is among those that tests/compressors/kernels/compiled.py compiles."""
    source = "\n".join(path.read_text() for path in (ROOT / "compressors/kernels").glob("*.py"))
    launched = set(re.findall(r"(?<!\w)(_\w+)\[", source))
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.compressors.kernels.compiled"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == launched
