"""Where a result was measured: commit, versions, hardware and the settings that change speed."""

import importlib.metadata
import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import wirebench
from wirebench.comm.launch_command import command
from wirebench.telemetry import gpu
from wirebench.telemetry.secrets import command_without_secrets, is_secret, without_secrets

ROOT = Path(__file__).resolve().parents[2]
CPUINFO = Path("/proc/cpuinfo")
_PREFIXES = ("OMP_", "MKL_", "KMP_", "HOROVOD_", "NCCL_", "GLOO_", "CUDA_", "TORCH_", "PYTORCH_", "CUBLAS_", "CUDNN_")
_SPEED_FLAGS = re.compile(r"avx|avx2|fma|f16c|avx_vnni|avx512\w*|amx_\w+|asimd\w*|sve\w*|bf16")


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
        "hostname": hostname(),
        "kernel": platform.release(),
        "cpu": cpu(),
        "gpus": _gpus(),
        "gpu_driver": gpu.driver_version(),
    }


def cpu() -> dict[str, Any]:
    """The machine's processor and memory; cores are those that the calling process may use."""
    return {"model": _cpu_model(), "flags": cpu_flags(), "cores": _cores(), "memory_mb": _memory_mb()}


def hostname() -> str:
    """This machine's name."""
    return platform.node()


def hardware(device: torch.device) -> str:
    """What computes, in words: a GPU's name, or a CPU's and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{_cpu_model() or 'CPU'}, {threads} thread{'' if threads == 1 else 's'}"


def git() -> dict[str, Any] | None:
    """Commit and whether files differ from it (results aside); None unless this is a git checkout with a commit."""
    if not (ROOT / ".git").exists():
        return None
    commit = _run_git("rev-parse", "HEAD")
    changes = _run_git("status", "--porcelain", "--", ".", ":!results")
    return None if commit is None or changes is None else {"commit": commit, "dirty": changes != ""}


def _run_git(*arguments: str) -> str | None:
    # status would write an index of its own beside the user's, under a lock that a commit of theirs finds taken.
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
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


def cpu_flags() -> list[str] | None:
    """The CPU's vector and matrix instruction sets, sorted, by the kernel's names; None where it does not list them."""
    flags = _cpu_line("flags", "Features")  # on x86, on ARM
    return None if flags is None else sorted(filter(_SPEED_FLAGS.fullmatch, flags.split()))


def _cpu_model() -> str | None:
    return _cpu_line("model name") or platform.processor() or None


def _cpu_line(*names: str) -> str | None:
    """What the kernel says of the first CPU under one of these names."""
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() in names), None)


def _cores() -> int | None:
    """Cores that this process may use: a container or a launcher may have bound it to some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory_mb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**6


def _gpus() -> list[str]:
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _variables() -> dict[str, str]:
    """Settings of the back ends and thread pools, and no others; secrets among them are left out."""
    named = {name: value for name, value in sorted(os.environ.items()) if name.startswith(_PREFIXES)}
    return {name: without_secrets(value) for name, value in named.items() if not is_secret(name)}
