"""The engine and the meeting point that a launch allows, and the end of a launched process.

Nothing here imports torch, so a mistake in a launch is reported before that import takes its seconds.
"""

import atexit
import importlib.util
import json
import multiprocessing
import os
import re
import shlex
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from wirebench.comm.host_list import nodes
from wirebench.comm.place import MOST, Environment, Launch, launched, launched_or_alone, number
from wirebench.errors import PeerLost, UserError, line_of
from wirebench.utils.own import trainer

__all__ = ["Launch", "launched", "launched_or_alone"]

SECONDS_FOR_RANK_0 = 3.0
SECONDS_FOR_AGENTS = 5.0
"""Time in which the torchruns of several hosts notice that a host has joined or left: they look about once a second."""
VIRTUAL_WORKERS = 4
COMMANDS = {"torch": "torchrun --nproc-per-node {size}", "horovod": "horovodrun -np {size} python"}
"""How an engine's own launcher is called on one host; the script follows."""


def has_agent(environment: Environment = os.environ) -> bool:
    """Whether this process's parent is torchrun's agent, in whose store ranks are to meet."""
    return environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def meeting_point(launch: Launch, environment: Environment = os.environ) -> tuple[str, int] | None:
    """Host and port at which rank 0 keeps torch.distributed's store; None if either is unknown.

    MASTER_ADDR and MASTER_PORT give them. Without these, under srun, the host is the first of the step's nodes, which
    has rank 0, and the port follows from the step's number. (SLURM_LAUNCH_NODE_IPADDR is the host that srun was typed
    on, which may be a login node.)
    """
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT", "")
    if launch.launcher == "srun":
        job, step = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_STEP_ID", "")
        listed = environment.get("SLURM_STEP_NODELIST", "")
        if launch.local_size == launch.size:
            host = host or "127.0.0.1"
        elif listed:
            host = host or next(nodes(listed, "SLURM_STEP_NODELIST"))
        if job.isdigit() and step.isdigit():
            # Below the ports that systems hand out by themselves; two steps of a job may run side by side.
            port = port or str(10_000 + (31 * int(job) + int(step)) % 20_000)
    if not host or not port or "torch" not in launch.engines:
        return None
    # An IPv6 address may be written as in a URL: [::1].
    return re.sub(r"^\[(.*)\]$", r"\1", host), number({"MASTER_PORT": port}, "MASTER_PORT", 1, 65535)


def engine_of(name: str, workers: int, launch: Launch, environment: Environment = os.environ) -> str:
    """The engine for engine.name = `name` (auto: what the launch allows) and engine.workers = `workers`.

    UserError if the launch does not allow it: no process of several trains alone because an engine is missing.
    """
    if name == "horovod" and not _has_horovod():
        raise UserError(
            "engine.name: horovod is not installed; `make setup` in a clone builds it, torch and local work without"
        )
    if name != "auto" and name not in launch.engines:
        if launch.alone:
            raise UserError(f"engine.name: {name!r} {_needs_its_launcher(name, workers)}")
        alone = "; each would train alone" if name == "local" else ""
        raise UserError(f"engine.name: {name!r}, but {_started(launch)}{alone}; engine.name=auto takes what fits")
    known = meeting_point(launch, environment) is not None
    possible = launch.engines if name == "auto" else (name,)
    usable = [each for each in possible if each == "local" or (known if each == "torch" else _has_horovod())]
    if not usable and launch.launcher == "torchrun":
        raise UserError("engine: RANK and WORLD_SIZE are set, but no good MASTER_ADDR and MASTER_PORT")
    if not usable:
        raise cannot_join(launch, "horovod is not installed" if known else "")
    if usable[0] != "local" and workers not in (0, launch.size):
        raise UserError(f"engine.workers: {workers} are asked for, but {launch.size} processes were started")
    return usable[0]


def cannot_join(launch: Launch, why: str) -> UserError:
    """The error where several processes were started and no engine joins them; `why`: what Horovod lacks."""
    ways = [f"{command.format(size=launch.size or 'N')} {script()}" for command in COMMANDS.values()]
    told = [each for each in (why, "torch needs MASTER_ADDR and MASTER_PORT") if each]
    return UserError(
        f"engine: {_started(launch)}, and no engine can join them ({'; '.join(told)}); start {' or '.join(ways)}"
    )


def _needs_its_launcher(name: str, workers: int) -> str:
    ranks = f"with {workers} workers " if workers else ""
    command = COMMANDS[name].format(size=workers or VIRTUAL_WORKERS)
    return f"{ranks}needs its launcher: {command} {script()}; engine.name=local trains virtual workers in this process"


def _started(launch: Launch) -> str:
    return f"{launch.size or 'an unknown number of'} processes were started by {launch.launcher}"


def script() -> str:
    """This command, as a launcher is to start it."""
    program = Path(sys.argv[0]).name
    if program in ("wirebench", "__main__.py"):
        return f"-m wirebench {shlex.join(sys.argv[1:])}"
    return shlex.join(sys.argv) if program == "train.py" else f"{trainer(launched=True)} CONFIG.toml"


def _has_horovod() -> bool:
    return importlib.util.find_spec("horovod") is not None


def needs_gloo(what: str) -> None:
    """UserError where horovodrun cannot start ranks by Gloo, as `what` has it do.

    conda-forge's Horovod has MPI alone.
    """
    if not _has_horovod():
        raise UserError(f"{what}: horovod is not installed; `make setup` in a clone builds it")
    from horovod.common.util import gloo_built

    if not gloo_built():
        raise UserError(f"{what}: needs Gloo, which horovod was built without here")


def let_rank_0_tell() -> None:
    """Let rank 0 report a mistake that all ranks see: the launcher ends the others when rank 0 has ended."""
    if launched_or_alone().rank:
        time.sleep(SECONDS_FOR_RANK_0)


def tell_error(message: object, code: int, at_once: bool = False) -> None:
    """Print on standard error, in one line, why this process will end with `code`.

    at_once  print without waiting for rank 0 to report a UserError: in an elastic run others wait for this one's end
    """
    place = launched_or_alone()
    if code == UserError.exit_code and not at_once:
        let_rank_0_tell()
    line = f"error: {f'rank {place.rank}: ' if place.size != 1 else ''}{line_of(message)}"
    if code != PeerLost.exit_code:
        _tell_torchrun(line)
    # In one piece, not as print does it: torchrun's ranks are unbuffered, and several may speak at once.
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _tell_torchrun(line: str) -> None:
    """For the summary at the end of torchrun's own traceback, which no rank can prevent: so it ends with the cause."""
    if path := os.environ.get("TORCHELASTIC_ERROR_FILE"):
        content = {"message": {"message": line, "extraInfo": {"timestamp": str(int(time.time()))}}}
        # The line itself is on its way already.
        with suppress(OSError):
            Path(path).write_text(json.dumps(content), encoding="utf-8")


def await_agent(environment: Environment = os.environ) -> None:
    """Wait before this rank ends because another rank received a signal: torchrun may be about to signal this one, too.

    That happens when a host joins or leaves. Each torchrun ends its ranks when it hears of the change, to restart all.
    If its rank has ended before, a torchrun takes the job for done, and the others wait for its host for ever. The wait
    does not help if a torchrun hears of the change later than SECONDS_FOR_AGENTS.
    """
    if "TORCHELASTIC_RUN_ID" in environment and number(environment, "GROUP_WORLD_SIZE", 1, MOST) > 1:
        time.sleep(SECONDS_FOR_AGENTS)


def end_process(code: int, tidy: bool = True, told: bool = False) -> NoReturn:
    """End with this exit code. A rank of a job does not come to the interpreter's own end.

    That now and then aborts (exit code 134) where C++ threads of Gloo or of the store still run. A rank that is done
    and that its launcher has forked (`wirebench torchrun`) returns to it: that waits for a value, and ends the process.

    tidy  call the functions registered with atexit; without them nothing waits for ranks that may be gone
    told  the launcher has signalled this process to end, and waits for its end
    """
    if not launched_or_alone().alone:
        if tidy:
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        parent = multiprocessing.parent_process()
        if code or told or parent is None or not parent.is_alive():
            os._exit(code)
    sys.exit(code)
