"""Where a result was measured: commit, versions, hardware and the settings that change speed."""

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from typing import Any

import torch

import wirebench
from wirebench.comm.launch_command import command
from wirebench.telemetry import gpu
from wirebench.telemetry.secrets import command_without_secrets, is_secret, without_secrets
from wirebench.utils import this_machine
from wirebench.utils.package import TOP

TORCH = torch.__version__.partition("+")[0]
"""The version of PyTorch, without how it was built."""
_PREFIXES = (
    "OMP_", "MKL_", "KMP_", "HOROVOD_", "NCCL_", "GLOO_", "CUDA_", "TORCH_", "PYTORCH_", "CUBLAS_", "CUDNN_",
    "WIREBENCH_NATIVE",
)  # fmt: skip


def capture(device: torch.device) -> dict[str, Any]:
    """The `environment` of a record, of the calling process on `device`; what cannot be known is None."""
    return {
        "utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_without_secrets(command()),
        **host(),
        "device": str(device),
        "threads_per_process": torch.get_num_threads(),
        "variables": _variables(),
    }


def host() -> dict[str, Any]:
    """What the calling process's machine is, and which software it has."""
    return {
        "git": git(),
        "versions": _versions(),
        "hostname": this_machine.hostname(),
        "kernel": this_machine.kernel(),
        "cpu": cpu(),
        "gpus": _gpus(),
        "gpu_driver": gpu.driver_version(),
    }


def cpu() -> dict[str, Any]:
    """The machine's processor and memory; cores are those that the calling process may use."""
    known, memory_mb = this_machine.cpu(), this_machine.memory_bytes() // 10**6
    return {"model": known.model, "flags": known.flags, "cores": this_machine.cores(), "memory_mb": memory_mb}


def hardware(device: torch.device) -> str:
    """What computes, in words: a GPU's name, or a CPU's and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{this_machine.cpu().model or 'CPU'}, {threads} thread{'' if threads == 1 else 's'}"


def git() -> dict[str, Any] | None:
    """Commit and whether files differ from it (results aside); None unless this is a git checkout with a commit."""
    if not (TOP / ".git").exists():
        return None
    commit = _run_git("rev-parse", "HEAD")
    changes = _run_git("status", "--porcelain", "--", ".", ":!results")
    return None if commit is None or changes is None else {"commit": commit, "dirty": changes != ""}


def _run_git(*arguments: str) -> str | None:
    # status would write an index of its own beside the user's, under a lock that a commit of theirs finds taken.
    command = ["git", "--no-optional-locks", "-C", str(TOP), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _versions() -> dict[str, str | None]:
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else None
    return {
        "wirebench": wirebench.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "torchvision": _installed("torchvision"),
        "horovod": _installed("horovod"),
        "cuda": torch.version.cuda,
        "nccl": nccl,
    }


def _installed(package: str) -> str | None:
    """The version that is installed, read from its metadata: importing Horovod would set it up."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _gpus() -> list[str]:
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _variables() -> dict[str, str]:
    """Settings of the back ends and thread pools, and no others; secrets among them are left out."""
    named = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)}
    return {name: without_secrets(value) for name, value in named.items() if not is_secret(name)}
