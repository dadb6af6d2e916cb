"""Who started this process, read from the environment before any engine exists; and how it ends."""

import atexit
import os
import sys
import time
from collections.abc import Mapping
from typing import NamedTuple, NoReturn

SECONDS_FOR_RANK_0 = 3.0


class Launch(NamedTuple):
    """A process's place as its launcher names it: horovodrun, torchrun, or none (engine `local`).

    sharing  ranks that share this machine's cores: those of its host, or, where the hosts are emulated on one machine
             (wirebench cluster), those of all its hosts
    """

    engine: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    sharing: int


def launched(environment: Mapping[str, str] = os.environ) -> Launch:
    """The place that the environment gives this process."""
    for engine, prefixes in (("horovod", ("HOROVOD_", "OMPI_COMM_WORLD_")), ("torch", ("",))):
        for prefix in prefixes:
            size_name = f"{prefix}WORLD_SIZE" if engine == "torch" else f"{prefix}SIZE"
            if f"{prefix}RANK" in environment and size_name in environment:
                rank, size = int(environment[f"{prefix}RANK"]), int(environment[size_name])
                local_rank = int(environment.get(f"{prefix}LOCAL_RANK", 0))
                name = "LOCAL_WORLD_SIZE" if engine == "torch" else f"{prefix}LOCAL_SIZE"
                local_size = int(environment.get(name, 1))
                sharing = int(environment.get("WIREBENCH_SHARED_BY", local_size))
                return Launch(engine, rank, size, local_rank, local_size, sharing)
    return Launch("local", 0, 1, 0, 1, 1)


def let_rank_0_tell() -> None:
    """A mistake that all ranks see is rank 0's to tell: the launcher ends the others when it has."""
    if launched().rank:
        time.sleep(SECONDS_FOR_RANK_0)


def end_process(code: int, tidy: bool = True) -> NoReturn:
    """End with this exit code. A rank of a job does not come to the interpreter's own end.

    That now and then aborts (exit code 134) where C++ threads of Gloo or of the store still run.

    tidy  call what is registered with atexit; without, nothing waits for ranks that may be gone
    """
    if launched().engine != "local":
        if tidy:
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
