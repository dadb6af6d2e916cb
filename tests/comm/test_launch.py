"""Launchers: what their environments say about this process."""

import os
import subprocess
import sys

import pytest

from wirebench.comm.launch import Launch, launched

HOROVOD = {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}
MPI = {f"OMPI_COMM_WORLD_{key.removeprefix('HOROVOD_')}": value for key, value in HOROVOD.items()}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, Launch("local", 0, 1, 0, 1, 1)),
        (HOROVOD, Launch("horovod", 3, 4, 1, 2, 2)),
        (MPI, Launch("horovod", 3, 4, 1, 2, 2)),
        (TORCHRUN, Launch("torch", 3, 4, 1, 2, 2)),
        ({**HOROVOD, **TORCHRUN}, Launch("horovod", 3, 4, 1, 2, 2)),
        ({"RANK": "3"}, Launch("local", 0, 1, 0, 1, 1)),
        ({"HOROVOD_RANK": "0"}, Launch("local", 0, 1, 0, 1, 1)),
        ({"WORLD_SIZE": "4", "HOROVOD_FUSION_THRESHOLD": "0"}, Launch("local", 0, 1, 0, 1, 1)),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Launch("torch", 1, 2, 0, 1, 1)),
        ({**TORCHRUN, "WIREBENCH_SHARED_BY": "4"}, Launch("torch", 3, 4, 1, 2, 4)),
    ],
)
def test_the_environment_names_the_launcher_and_the_place(environment, place):
    assert launched({"HOME": "/root", **environment}) == place


def test_this_process_was_not_launched(monkeypatch):
    for key in (*HOROVOD, *MPI, *TORCHRUN):
        monkeypatch.delenv(key, raising=False)
    assert launched().engine == "local"


ENDING = """
import atexit
from wirebench.comm.launch import end_process

class Late:
    def __del__(self):
        print("the interpreter's end", flush=True)

late = Late()
late.itself = late
atexit.register(print, "registered")
print("said")
end_process(7, tidy={tidy})
"""


@pytest.mark.parametrize(
    ("rank", "tidy", "said"),
    [
        ("0", True, ["said", "registered"]),
        ("0", False, ["said"]),
        ("", True, ["said", "registered", "the interpreter's end"]),
    ],
)
def test_a_rank_ends_before_the_interpreter_does(rank: str, tidy: bool, said: list[str]) -> None:
    environment = {**os.environ, **({"RANK": rank, "WORLD_SIZE": "2"} if rank else {})}
    command = [sys.executable, "-c", ENDING.format(tidy=tidy)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout.split("\n")[:-1]) == (7, said), ended.stderr
