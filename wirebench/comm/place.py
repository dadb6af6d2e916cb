"""Which launcher started this process, and which of how many ranks it is: variables of its environment, checked.

Wrong variables of a launcher are refused here, before any rank waits for one that does not exist.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from wirebench.comm.host_list import task_counts
from wirebench.errors import UserError

Environment = Mapping[str, str]
MOST = 10**6
"""The largest number of ranks that is accepted."""


class Launch(NamedTuple):
    """A process's place as its launcher names it.

    launcher  horovodrun, torchrun, mpirun, srun, or "" without a launcher
    engines   that can join its processes; the first one is taken if the config names none
    size      0: not known
    sharing   ranks that share this machine's cores: the ranks of its host or, if the hosts are emulated on one machine
              (wirebench cluster), the ranks of all its hosts
    """

    launcher: str
    engines: tuple[str, ...]
    rank: int
    size: int
    local_rank: int
    local_size: int
    sharing: int

    @property
    def alone(self) -> bool:
        """No launcher started this process: all workers live in it."""
        return self.engines[:1] == ("local",)


ALONE = Launch("", ("local",), 0, 1, 0, 1, 1)


class _Launcher(NamedTuple):
    """A launcher, the engines that can join its processes, and the variables that give a process its place.

    counts  whether this launcher set these variables for this very process
    halves  whether it is a mistake if one of rank and size is set without the other
    """

    name: str
    engines: tuple[str, ...]
    rank: str
    size: str
    local_rank: str = ""
    local_size: str = ""
    counts: Callable[[Environment], bool] = lambda environment: True
    halves: Callable[[Environment], bool] = lambda environment: True


def _is_task(environment: Environment) -> bool:
    """Whether srun started this process as a task of a step.

    The shell of a batch script has SLURM_PROCID and SLURM_NTASKS as well, and no step: it is one process. The daemons
    of an mpirun are tasks, one a node, whose variables its processes inherit: PMI's numbers are then others.
    """
    if "SLURM_JOB_ID" in environment and "SLURM_STEP_ID" not in environment:
        return False
    sizes = (environment.get("SLURM_STEP_NUM_TASKS"), environment.get("SLURM_NTASKS"))
    return environment.get("PMI_SIZE") in (None, *sizes)


def _is_task_of_a_step(environment: Environment) -> bool:
    """Whether it is more than a shell of a job: salloc's has a number of tasks alone, sbatch's has no step."""
    return {"SLURM_PROCID", "SLURM_STEP_ID"} <= environment.keys() and _is_task(environment)


def _prefixed(prefix: str) -> tuple[str, str, str, str]:
    return f"{prefix}RANK", f"{prefix}SIZE", f"{prefix}LOCAL_RANK", f"{prefix}LOCAL_SIZE"


def _is_flux_task(environment: Environment) -> bool:
    """Whether flux started this process, and not as a daemon of an mpirun, whose processes inherit its variables."""
    return environment.get("PMI_SIZE") in (None, environment["FLUX_JOB_SIZE"])


def _never(environment: Environment) -> bool:
    return False


_SRUN_LOCAL_SIZE = "SLURM_STEP_TASKS_PER_NODE"
_MPI = ("torch", "horovod")
_LAUNCHERS = (
    _Launcher("horovodrun", ("horovod",), *_prefixed("HOROVOD_")),
    _Launcher("torchrun", ("torch",), "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Launcher("mpirun", _MPI, *_prefixed("OMPI_COMM_WORLD_")),
    _Launcher("mpirun", _MPI, *_prefixed("MV2_COMM_WORLD_")),
    # Its broker is a task of srun: where both speak, srun's numbers are the broker's.
    _Launcher("flux", _MPI, "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", counts=_is_flux_task),
    # The first of these two is the step's own number; the second may be the whole allocation's.
    _Launcher(
        "srun", _MPI, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", _SRUN_LOCAL_SIZE,
        counts=_is_task, halves=_is_task_of_a_step,
    ),
    _Launcher(
        "srun", _MPI, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", _SRUN_LOCAL_SIZE, counts=_is_task, halves=_never
    ),
    # Cray's mpiexec; PMI_SIZE is there unless it was called with --pmi=none, and it may be another one's.
    _Launcher("mpirun", _MPI, "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", halves=_never),
    _Launcher("mpirun", _MPI, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    _Launcher("a PALS launcher", (), "PALS_RANKID", ""),
    _Launcher("a PMIx launcher", (), "PMIX_RANK", ""),
)  # fmt: skip
"""The innermost first: torchrun may run under srun, one for each node, but never the other way round."""


def launched(environment: Environment = os.environ) -> Launch:
    """The place that the environment gives this process; UserError, with the variable, where it makes no sense."""
    for each in _LAUNCHERS:
        if _speaks(each, environment):
            _refuse_inherited(each, environment)
            return _place(each, environment)
    _refuse_halves(environment)
    return ALONE


def launched_or_alone() -> Launch:
    """For the end of a process, which also comes where its launcher's variables make no sense."""
    try:
        return launched()
    except UserError:
        return ALONE


def _speaks(launcher: _Launcher, environment: Environment) -> bool:
    """Whether its variables are there; one of them may be empty, which is a mistake."""
    names = [name for name in (launcher.rank, launcher.size) if name]
    told = [environment[name] for name in names if name in environment]
    return len(told) == len(names) and any(told) and launcher.counts(environment)


def _refuse_halves(environment: Environment) -> None:
    """UserError if a launcher has set rank or size, but not both: each process would take itself for the only one.

    To be called if no launcher's variables count.
    """
    for each in _LAUNCHERS:
        for here, missing in ((each.rank, each.size), (each.size, each.rank)):
            told = environment.get(here)
            alone = here == each.size and told == "1"  # what a container left behind: one process is one
            if missing and told and not alone and missing not in environment and each.halves(environment):
                raise UserError(f"{missing}: is missing, {here} is {told}")


def _refuse_inherited(first: _Launcher, environment: Environment) -> None:
    """UserError where RANK was set by hand once for all processes, which another launcher has numbered."""
    if first.name != "torchrun" or "TORCHELASTIC_RUN_ID" in environment:
        return
    for other in _LAUNCHERS[_LAUNCHERS.index(first) + 1 :]:
        known = other.size and _speaks(other, environment)
        if (
            known
            and environment[other.size] == environment["WORLD_SIZE"]
            and environment[other.rank] != environment["RANK"]
        ):
            told = f"{other.rank} is {environment[other.rank]} of as many processes"
            raise UserError(
                f"RANK: is {environment['RANK']}, but {told}; unset RANK and WORLD_SIZE, or set RANK to that"
            )


def _place(launcher: _Launcher, environment: Environment) -> Launch:
    size = number(environment, launcher.size, 1, MOST)
    most, of = (size or MOST) - 1, f" ({launcher.size} is {size})" if size else ""
    rank = number(environment, launcher.rank, 0, most, of)
    if launcher.name == "torchrun":
        number(environment, "GROUP_WORLD_SIZE", 1, most + 1, of)  # what reads it is a rank's end, too late to refuse it
    if launcher.name == "srun":
        local_size = _tasks_on_this_node(environment, size)
    else:
        local_size = number(environment, launcher.local_size, 1, most + 1, of)
    if local_size:
        most, of = local_size - 1, f" ({launcher.local_size} is {local_size})"
    local_rank = number(environment, launcher.local_rank, 0, most, of)
    if launcher.name == "flux":
        nodes = number(environment, "FLUX_JOB_NNODES", 1, size, f" (FLUX_JOB_SIZE is {size})")
        local_size = -(-size // (nodes or size))
    local_size = local_size or 1
    sharing = number(environment, "WIREBENCH_SHARED_BY", 1, MOST) or local_size
    engines = launcher.engines
    if size == 1 and launcher.name == "srun":
        # A single task, a shell for instance (srun --pty bash), is not there to be joined by others.
        engines = ("local", *engines)
    elif size == 1 and launcher.name in ("mpirun", "flux"):
        engines = (*engines, "local")
    return Launch(launcher.name, engines, rank, size, local_rank, local_size, sharing)


def number(environment: Environment, name: str, least: int, most: int, why: str = "") -> int:
    """The variable's value, 0 where it is not set; UserError, with what is allowed and `why`, for any other one."""
    text = environment.get(name)
    if text is None:
        return 0
    if not re.fullmatch("[0-9]{1,9}", text) or not least <= int(text) <= most:
        raise UserError(f"{name}: must be a whole number from {least} to {most}{why}, got {text!r}")
    return int(text)


def _tasks_on_this_node(environment: Environment, size: int) -> int:
    """The number from srun's list, e.g. "2(x3),1": three nodes with two tasks each, then one with one. 0 if unknown."""
    text, node, nodes = environment.get(_SRUN_LOCAL_SIZE, ""), number(environment, "SLURM_NODEID", 0, MOST), 0
    # The list is only walked: 1(x999999999) is a long one.
    for tasks, times in task_counts(text, _SRUN_LOCAL_SIZE, size) if text else ():
        nodes += times
        if node < nodes:
            return tasks
    return 0
