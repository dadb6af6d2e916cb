"""The command that started a run, including the launcher's arguments and any secrets in them.

The record hides the secrets of every command when it is written (telemetry.secrets).
"""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from wirebench.comm.launch import Launch, launched

TOLD = "WIREBENCH_LAUNCHED_BY"
"""Variable in which a launcher of the suite's own (wirebench cluster) leaves its command."""
LINK_MBIT = "WIREBENCH_LINK_MBIT"
"""Variable in which it leaves the rate of this host's link; read by telemetry.rank_facts."""
_PROGRAMS = {
    "horovodrun": ("horovodrun",),
    "torchrun": ("torchrun", "torch.distributed.run", "torch.distributed.launch"),
    "mpirun": ("horovodrun", "mpirun", "mpiexec", "mpiexec.hydra", "mpirun_rsh", "orterun", "prterun"),
    "srun": ("srun",),
    "flux": ("flux",),
}
"""Names under which a launcher is called: horovodrun may call mpirun in its turn."""
_REBUILT = {
    "horovodrun": "horovodrun -np {size}", "mpirun": "mpirun -n {size}", "srun": "srun --ntasks {size}",
    "flux": "flux run --ntasks {size}",
}  # fmt: skip


def command() -> str:
    """The command line of the job that this process belongs to.

    It is read from the launcher's process if that is an ancestor on this host, else rebuilt from the environment.
    """
    launch = launched()
    if not launch.launcher:
        return typed(sys.orig_argv)
    if TOLD in os.environ:
        return os.environ[TOLD]
    try:
        lines = [process.cmdline() for process in psutil.Process().parents()]
    except psutil.Error:
        lines = []
    commands = [words for line in lines if (words := launcher_words(line, launch.launcher))]
    return shlex.join(commands[-1]) if commands else _rebuilt(launch)


def typed(line: Sequence[str]) -> str:
    """This process's own command line, as `sys.orig_argv` has it, in the words that the user typed.

    The system puts the interpreter before the script `wirebench`.
    """
    words = ["wirebench", *line[2:]] if [Path(word).name for word in line[1:2]] == ["wirebench"] else list(line)
    return shlex.join(words)


def is_torchrun(words: Sequence[str]) -> bool:
    """Whether a launcher's words call torchrun, which takes a module where others take a program."""
    return any(Path(word).name in _PROGRAMS["torchrun"] for word in words)


def launcher_words(line: Sequence[str], launcher: str) -> list[str]:
    """A process's command line from the launcher's name on, or [] where it is not that launcher's."""
    programs = _PROGRAMS.get(launcher, ())
    # The program itself, or the first words after the interpreter's: python .../torchrun, python -m torch...run.
    for place, word in enumerate(line[:4]):
        if Path(word).name in programs:
            asked = Path(line[place - 1]).name if place else ""
            before = {"-m": ["python", "-m"], "wirebench": ["wirebench"]}.get(asked, [])
            return [*before, Path(word).name, *line[place + 1 :]]
    return []


def _rebuilt(launch: Launch) -> str:
    if launch.launcher == "torchrun":
        nodes = launch.size // launch.local_size
        several = f"--nnodes {nodes} " if nodes > 1 else ""
        module = getattr(sys.modules["__main__"], "__spec__", None)  # python -m sets it; a script has none
        program = ["-m", module.name.removesuffix(".__main__")] if module else sys.argv[:1]
        return f"torchrun {several}--nproc-per-node {launch.local_size} {shlex.join([*program, *sys.argv[1:]])}"
    return f"{_REBUILT[launch.launcher].format(size=launch.size)} {shlex.join(sys.orig_argv)}"
