"""What a host knows of itself that has to be the same, or enough, for a run."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wirebench.config import loader
from wirebench.doctor import choices
from wirebench.doctor.answers import LONGEST, printable
from wirebench.errors import UserError
from wirebench.telemetry import environment
from wirebench.utils import this_machine
from wirebench.utils.package import TOP

SHARED_MEMORY = Path("/dev/shm")


def gather(config: str | None, interface: str | None, variables: Mapping[str, str]) -> dict[str, Any]:
    """The calling host's facts, by name; None for what it does not have.

    config     a config's path, relative to the project's folder or absolute
    interface  the network interface by which the hosts are to reach each other
    variables  of NCCL and Gloo, which a launcher will pass on to this host's ranks
    """
    known, links = environment.host(), this_machine.interfaces()
    told = choices.variables(os.environ) | dict(variables)
    git, versions = known["git"], known["versions"]
    return {
        "hostname": known["hostname"],
        "commit": None if git is None else git["commit"],
        "dirty": bool(git and git["dirty"]),
        **{name: versions[name] for name in ("wirebench", "python", "torch", "torchvision", "horovod", "cuda", "nccl")},
        "horovod_build": _horovod_build(),
        # From the checkout, whatever folder the host starts in; or a shipped one by its name.
        "config": _digest(loader.find(TOP / config if (TOP / config).exists() else config)) if config else None,
        "gpus": known["gpus"],
        "driver": known["gpu_driver"],
        "cores": known["cpu"]["cores"],
        "address": next(iter(links[interface].addresses), None) if interface in links else None,
        "links": {name: each._asdict() for name, each in links.items()},
        "name_addresses": this_machine.own_addresses_of(known["hostname"]),
        "variables": {name: printable(text)[:LONGEST] for name, text in told.items()},
        "fabric": [each._asdict() for each in this_machine.fabric_ports()],
        "tcp": this_machine.tcp_settings(),
        "boot": this_machine.boot(),
        "free_gb": this_machine.free_disk_bytes(TOP) / 1e9,
        "shared_memory_gb": this_machine.free_disk_bytes(SHARED_MEMORY) / 1e9 if SHARED_MEMORY.is_dir() else None,
    }


def _digest(path: Path) -> str | None:
    """The first 12 hex digits of the SHA-256 of a config file; None if the file is missing."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error


def _horovod_build() -> str | None:
    """What Horovod can send with, as it says itself; None where it is not installed or does not load."""
    # Horovod reads these when it is imported, and a host that is only looked at is no rank.
    for name in [each for each in os.environ if each.startswith("HOROVOD_")]:
        del os.environ[name]
    try:
        import horovod.torch as hvd
    except (ImportError, OSError):
        return None
    parts = {"gloo": hvd.gloo_built(), "mpi": hvd.mpi_built(), "nccl": hvd.nccl_built()}
    return " ".join(name for name, built in parts.items() if built) or "nothing"
