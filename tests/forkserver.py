"""The process that ranks of tests are forked from: it has imported what most of them need, and runs nothing.

The workers of pytest-xdist share one, since each of their own would import for seconds. And they wait for no disk.
"""

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import stat
from multiprocessing.context import ForkServerContext
from typing import Any

PRELOADED = [
    "wirebench.compose.run",
    "torch._dynamo",  # which DistributedDataParallel and Muon ask for
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.utils.tensorboard",
    "torch.utils.tensorboard.summary",
    "horovod.torch",
    "horovod.torch.mpi_ops",
    "sklearn.datasets",
    "pytest",
    "tests.comm.processes",
    "tests.distributed.forked",
    "tests.dropin.hooked",
    "tests.dropin.loops",
    "tests.dropin.pods_misuse",
    "wirebench.dropin.fsdp",
    "wirebench.dropin.shard_sums",
]
ADDRESS = "PYTEST_FORK_SERVER"
"""Where the variable stands, processes fork from the server at this address, which another process has started."""


def share() -> None:
    """Start the server, from which this process and all that it starts will fork as long as this one lives."""
    server = _server()
    if not hasattr(server, "_forkserver_authkey"):  # from Python 3.14 on it serves its own process alone
        server.ensure_running()
        os.environ[ADDRESS] = server._forkserver_address


def forkserver() -> ForkServerContext:
    """The context of processes that are forked from it."""
    server = _server()
    if ADDRESS in os.environ and server._forkserver_address is None:
        server._forkserver_address = os.environ[ADDRESS]
        # A server ends when nobody holds the end of a pipe that belongs here; this one's is held by who started it.
        server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)
        server.ensure_running = multiprocessing.resource_tracker.ensure_running
    return multiprocessing.get_context("forkserver")


def sync_nothing() -> None:
    """From now on this process waits for no disk to have a file or a folder: no test cuts the power."""
    real = os.fsync

    def fsync(fd: Any) -> None:
        number = fd if isinstance(fd, int) else fd.fileno()
        if stat.S_IFMT(os.fstat(number).st_mode) not in (stat.S_IFREG, stat.S_IFDIR):
            real(number)

    os.fsync = fsync


def _server() -> Any:
    server = multiprocessing.forkserver._forkserver
    server.set_forkserver_preload(PRELOADED)
    return server
