"""A Horovod with MPI and without Gloo, as conda-forge builds it: what works, and what is refused in one line."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from wirebench.bench.overhead import launch
from wirebench.comm import launch as launching
from wirebench.comm.engine import start
from wirebench.config.sections import EngineConfig
from wirebench.errors import UserError

BY_GLOO = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"}
BY_MPI = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}
SECTION = EngineConfig(name="horovod", timeout_seconds=20.0)


@pytest.fixture
def horovod(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Horovod on one rank, whose first call is noted."""
    begun: list[str] = []
    made = ModuleType("horovod.torch")
    answers = {
        "gloo_built": False, "mpi_built": True, "mpi_enabled": True, "nccl_built": 0,
        "rank": 0, "size": 1, "local_rank": 0, "local_size": 1, "shutdown": None,
    }  # fmt: skip
    for name, answer in answers.items():
        setattr(made, name, lambda answer=answer: answer)
    made.init = lambda: begun.append("init")  # type: ignore[attr-defined]
    made.broadcast_object = lambda value, name: value  # type: ignore[attr-defined]
    made.allgather_async = lambda tensor, name: tensor  # type: ignore[attr-defined]
    made.poll = lambda call: True  # type: ignore[attr-defined]
    made.synchronize = lambda call: call  # type: ignore[attr-defined]
    util = ModuleType("horovod.common.util")
    util.gloo_built = made.gloo_built  # type: ignore[attr-defined]
    parent = ModuleType("horovod")
    parent.torch = made  # type: ignore[attr-defined]
    for name, module in {
        "": parent,
        ".torch": made,
        ".common": ModuleType("horovod.common"),
        ".common.util": util,
    }.items():
        monkeypatch.setitem(sys.modules, f"horovod{name}", module)
    monkeypatch.setattr(launching, "_has_horovod", lambda: True)
    return SimpleNamespace(begun=begun)


def test_ranks_of_a_launcher_that_needs_gloo_are_refused(horovod, monkeypatch):
    for name, value in BY_GLOO.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as refused:
        start(SECTION, None)
    line = str(refused.value)
    assert "Gloo" in line and "horovodrun --mpi -np 2" in line and "\n" not in line
    assert not horovod.begun, "Horovod would end the process"


def test_ranks_of_mpirun_train(horovod, monkeypatch):
    for name, value in BY_MPI.items():
        monkeypatch.setenv(name, value)
    engine = start(SECTION, None)
    engine.close()
    assert (engine.name, engine.size, engine.backend, horovod.begun) == ("horovod", 1, "mpi", ["init"])


def test_a_benchmark_that_starts_ranks_by_gloo_is_refused(horovod):
    with pytest.raises(UserError, match="--engine horovod: needs Gloo"):
        launch("overhead", SimpleNamespace(engine="horovod", processes=2), [])  # type: ignore[arg-type]


def test_the_same_without_horovod(monkeypatch):
    monkeypatch.setattr(launching, "_has_horovod", lambda: False)
    with pytest.raises(UserError, match="--engine horovod: horovod is not installed"):
        launch("overhead", SimpleNamespace(engine="horovod", processes=2), [])  # type: ignore[arg-type]
