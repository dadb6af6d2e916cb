"""Real ranks for tests: processes of one gloo group that run the functions they are sent."""

import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from tests.comm.contract import CHECKS
from tests.forkserver import forkserver
from wirebench.comm.torchdist import TorchCommunicator
from wirebench.exchange.advance import run

SECONDS = 60


class Ranks:
    """`size` processes; `call` runs a function of a module in all of them."""

    def __init__(self, size: int) -> None:
        context = forkserver()
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._keeper = store
        pipes = [context.Pipe() for _ in range(size)]
        self._ends = [mine for mine, _ in pipes]
        self._processes = [
            context.Process(target=_serve, args=(theirs, store.port, rank, size), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()

    def call(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """`function(*arguments)` in every process; results by rank. AssertionError with the traceback of a failure."""
        for end in self._ends:
            end.send((function, arguments))
        answers = []
        for rank, end in enumerate(self._ends):
            assert end.poll(SECONDS), f"rank {rank} does not answer"
            answers.append(end.recv())
        failures = [f"rank {rank}: {text}" for rank, (good, text) in enumerate(answers) if not good]
        assert not failures, "\n".join(failures)
        return [result for _, result in answers]

    def close(self) -> None:
        """End the processes."""
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.join(5)
            process.kill()


def keeps_the_contract(name: str) -> None:
    """In every rank: the check `name` of the contract."""
    run([CHECKS[name](TorchCommunicator())])


def _serve(end: Connection, port: int, rank: int, size: int) -> None:
    torch.set_num_threads(1)
    timeout = timedelta(seconds=SECONDS / 2)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    while True:
        try:
            function, arguments = end.recv()
        except EOFError:
            return
        try:
            end.send((True, function(*arguments)))
        except Exception:
            end.send((False, traceback.format_exc()))
