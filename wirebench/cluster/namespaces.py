"""Namespaces: whether they can be made here, and the commands that make and enter them.

Nothing is given a name in the file system and nothing is added to the machine's own network namespace, so nothing can
be left there.
"""

import os
import shutil
import subprocess
import sys

from wirebench.errors import UserError

TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
"""Each program that is needed, and the package that has it."""

# When unshare dies its child gets SIGKILL, and with that first process everything in the namespace.
CLUSTER = ("unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
JOB = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
HOST = ("unshare", "--net", "--uts")


def as_user() -> tuple[str, ...]:
    """Words for unshare where the caller is not root: root of a user namespace may do all that is needed here."""
    return () if os.geteuid() == 0 else ("--user", "--map-root-user")


def environment() -> dict[str, str]:
    """This process's environment, with the folders of system tools on the PATH, which users' often lacks."""
    return {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])}


def program(module: str, argument: str) -> list[str]:
    """The command that runs `main` of a module of this package, which is found as it was for this process: it is
    installed, or the working directory is TOP.
    """
    code = f"import sys; from wirebench.cluster.{module} import main; sys.exit(main())"
    return [sys.executable, "-c", code, argument]


def check() -> None:
    """Raise UserError, which says what to do, where a program is missing or the kernel allows no namespaces."""
    for tool, package in TOOLS.items():
        if shutil.which(tool, path=environment()["PATH"]) is None:
            raise UserError(f"{tool} is missing: apt install {package}")
    probe = (*CLUSTER, *as_user(), "true")
    tried = subprocess.run(probe, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment())
    if tried.returncode:
        raise UserError(refusal(os.geteuid() == 0, tried.stderr.strip().splitlines()))


def refusal(is_root: bool, said: list[str]) -> str:
    """One line on what unshare's error means and what helps."""
    reason = said[0] if said else "unshare failed"
    if is_root or "mount" in reason:
        return f"no namespaces can be made here ({reason}), as in a container: start it with docker run --privileged"
    return (
        f"the kernel allows no user namespaces for users ({reason}); run as root, or "
        "sysctl kernel.unprivileged_userns_clone=1 (on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0)"
    )


def inside(pid: int, *kinds: str) -> list[str]:
    """Words that run a command in namespaces of a process: net, uts, pid, mount."""
    user = ["--user"] if as_user() else []
    return ["nsenter", "--preserve-credentials", f"--target={pid}", *user, *(f"--{kind}" for kind in kinds), "--"]
