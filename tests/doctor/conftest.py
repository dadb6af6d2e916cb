"""Emulated hosts for the doctor to visit."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.visiting import ROOT


@pytest.fixture
def cluster(
    namespaces: None, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Any]:
    """Starts hosts with links of these rates; gives each host's words for nsenter."""
    from wirebench.cluster import state

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))

    def start(links: str) -> dict[str, dict[str, Any]]:
        shape = ["--hosts", str(links.count(",") + 1), "--link", links]
        up = [sys.executable, "-m", "wirebench", "cluster", "up", "--name", "lab", *shape]
        subprocess.run(up, cwd=ROOT, check=True, capture_output=True)
        known = state.find("lab")
        request.addfinalizer(lambda: state.end(known))
        enter = ["--net", "--uts", "--preserve-credentials"]
        return {host: {"inside": [f"--target={pid}", *enter]} for host, pid in known.cluster.find_hosts().items()}

    return start
