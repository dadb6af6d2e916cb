"""`wirebench doctor`, as it is typed, and what it would see of a host that is well."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.doctor import compare

ROOT = Path(__file__).resolve().parents[2]
HERE = shlex.quote(str(ROOT))
SSH = shlex.join([sys.executable, "-S", str(Path(__file__).with_name("other_host.py"))])


class Told(NamedTuple):
    """What `wirebench doctor` said.

    lines   its findings and the summary; tables: what follows these
    """

    code: int
    lines: list[str]
    errors: str
    tables: list[str]


def doctor(*words: str, folder: Path = ROOT, variables: dict[str, str] | None = None, **differs: Any) -> Told:
    """Run it with hosts that are this one, but for what differs; variables: what it was started with."""
    command = [sys.executable, "-m", "wirebench", "doctor", "--ssh", SSH, "--seconds", "0.2", *words]
    environment = {**os.environ, "DIFFERS": json.dumps(differs), "PYTHONPATH": str(folder), **(variables or {})}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    said, _, shown = done.stdout.partition("\n\n")
    return Told(done.returncode, said.splitlines(), done.stderr, shown.splitlines())


def interface(*addresses: str, mtu: int = 1500, mbit: float = 0.0, duplex: str = "", running: bool = True) -> Any:
    """An interface, as a host tells it."""
    return {"addresses": list(addresses), "running": running, "mtu": mtu, "mbit": mbit, "duplex": duplex}


def facts(number: int = 1, **changes: Any) -> dict[str, Any]:
    """What a healthy host says of itself; number: the last one of its addresses."""
    same: dict[str, Any] = dict.fromkeys(compare.mends("/w"), "1")
    address = f"10.0.0.{number}"
    more = {
        "address": address, "free_gb": 50.0, "shared_memory_gb": 8.0, "cores": 8, "boot": f"boot-{number}",
        "links": {"eth0": interface(address), "lo": interface("127.0.0.1", "::1", mtu=65536)},
        "name_addresses": [address], "variables": {}, "fabric": [],
        "tcp": {
            "tcp_rmem": "4096 131072 6291456", "tcp_wmem": "4096 16384 4194304", "rmem_max": "212992",
            "wmem_max": "212992", "tcp_congestion_control": "cubic", "tcp_window_scaling": "1", "tcp_sack": "1",
        },
    }  # fmt: skip
    return same | {"gpus": [], "dirty": False} | more | changes
