"""Launchers: what their environments say about this process."""

import os
import subprocess
import sys

import pytest

from wirebench.comm import launch
from wirebench.comm.launch import Launch, engine_of, launched, meeting_point
from wirebench.errors import UserError

HOROVOD = {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "2"}
MPI = {f"OMPI_COMM_WORLD_{key.removeprefix('HOROVOD_')}": value for key, value in HOROVOD.items()}
MVAPICH = {f"MV2_COMM_WORLD_{key.removeprefix('HOROVOD_')}": value for key, value in HOROVOD.items()}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
BARE_SLURM = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}
BATCH_SHELL = {"SLURM_JOB_ID": "812", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
STEP = {
    **BATCH_SHELL, "SLURM_STEP_ID": "2", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_STEP_NODELIST": "node[007-008]",
}  # fmt: skip
PALS = {"PALS_RANKID": "3", "PMI_SIZE": "4", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2", "PMI_RANK": "3"}
FLUX = {"FLUX_TASK_RANK": "3", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "2"}
SHELL_IN_STEP = {
    **STEP, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0", "SLURM_LOCALID": "0",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}  # fmt: skip
BOTH, ALONE = ("torch", "horovod"), Launch("", ("local",), 0, 1, 0, 1, 1)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, ALONE),
        (HOROVOD, Launch("horovodrun", ("horovod",), 3, 4, 1, 2, 2)),
        (TORCHRUN, Launch("torchrun", ("torch",), 3, 4, 1, 2, 2)),
        ({**HOROVOD, **TORCHRUN}, Launch("horovodrun", ("horovod",), 3, 4, 1, 2, 2)),
        ({"HOROVOD_FUSION_THRESHOLD": "0", "RANK": ""}, ALONE),
        ({"SLURM_PROCID": "0", "SLURM_JOB_ID": "812"}, ALONE),
        ({"SLURM_NTASKS": "4", "SLURM_JOB_ID": "812"}, ALONE),
        ({"RANK": "1", "WORLD_SIZE": "2"}, Launch("torchrun", ("torch",), 1, 2, 0, 1, 1)),
        ({**TORCHRUN, "WIREBENCH_SHARED_BY": "4"}, Launch("torchrun", ("torch",), 3, 4, 1, 2, 4)),
        (MPI, Launch("mpirun", BOTH, 3, 4, 1, 2, 2)),
        (MVAPICH, Launch("mpirun", BOTH, 3, 4, 1, 2, 2)),
        (HYDRA, Launch("mpirun", BOTH, 3, 4, 1, 2, 2)),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, Launch("mpirun", (*BOTH, "local"), 0, 1, 0, 1, 1)),
        ({"PMIX_RANK": "1"}, Launch("a PMIx launcher", (), 1, 0, 0, 1, 1)),
        (BARE_SLURM, Launch("srun", BOTH, 3, 4, 0, 1, 1)),
        (STEP, Launch("srun", BOTH, 3, 4, 1, 2, 2)),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x99999999999)"}, Launch("srun", BOTH, 3, 4, 1, 2, 2)),
        ({**STEP, "PMI_RANK": "3", "PMI_SIZE": "4", "PMIX_RANK": "3"}, Launch("srun", BOTH, 3, 4, 1, 2, 2)),
        (BATCH_SHELL, ALONE),
        (SHELL_IN_STEP, Launch("srun", ("local", *BOTH), 0, 1, 0, 1, 1)),
        (PALS, Launch("mpirun", BOTH, 3, 4, 1, 2, 2)),
        ({"PALS_RANKID": "3"}, Launch("a PALS launcher", (), 3, 0, 0, 1, 1)),
        (FLUX, Launch("flux", BOTH, 3, 4, 1, 2, 2)),
        ({**FLUX, "PMI_RANK": "3", "PMI_SIZE": "4"}, Launch("flux", BOTH, 3, 4, 1, 2, 2)),
        ({**FLUX, "FLUX_JOB_SIZE": "5"}, Launch("flux", BOTH, 3, 5, 1, 3, 3)),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4"}, Launch("flux", BOTH, 1, 4, 0, 1, 1)),
        ({**FLUX, **MPI}, Launch("mpirun", BOTH, 3, 4, 1, 2, 2)),
        ({**FLUX, **HYDRA, "FLUX_JOB_SIZE": "2"}, Launch("mpirun", BOTH, 3, 4, 1, 2, 2)),
        # Numbers of another launcher that may well differ: torchrun's own are by arrival; a node's daemon is one task.
        ({**STEP, **TORCHRUN, "RANK": "0", "TORCHELASTIC_RUN_ID": "a"}, Launch("torchrun", ("torch",), 0, 4, 1, 2, 2)),
        ({**TORCHRUN, "PMI_RANK": "1", "PMI_SIZE": "2"}, Launch("torchrun", ("torch",), 3, 4, 1, 2, 2)),
        # Launchers inside launchers: torchrun on each node of a step, and MPI's daemons, which are tasks of a step.
        ({**STEP, **TORCHRUN}, Launch("torchrun", ("torch",), 3, 4, 1, 2, 2)),
        ({**STEP, **MPI}, Launch("mpirun", BOTH, 3, 4, 1, 2, 2)),
        ({**STEP, **HYDRA, "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}, Launch("mpirun", BOTH, 3, 4, 1, 2, 2)),
        ({**BATCH_SHELL, **MPI}, Launch("mpirun", BOTH, 3, 4, 1, 2, 2)),
        # Flux's broker is a task of a step, which its own tasks have the variables of.
        ({**STEP, **FLUX, "SLURM_PROCID": "0"}, Launch("flux", BOTH, 3, 4, 1, 2, 2)),
        ({**STEP, **FLUX, "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}, Launch("flux", BOTH, 3, 4, 1, 2, 2)),
        ({**MPI, "RANK": "0"}, Launch("mpirun", BOTH, 3, 4, 1, 2, 2)),
    ],
)
def test_the_environment_names_the_launcher_and_the_place(environment, place):
    assert launched({"HOME": "/root", **environment}) == place


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({**TORCHRUN, "RANK": "4"}, "RANK: must be a whole number from 0 to 3 (WORLD_SIZE is 4), got '4'"),
        ({**TORCHRUN, "RANK": ""}, "RANK: must be a whole number from 0 to 3 (WORLD_SIZE is 4), got ''"),
        ({**TORCHRUN, "RANK": "\u0663"}, "RANK: must be a whole number from 0 to 3 (WORLD_SIZE is 4), got '\u0663'"),
        ({**TORCHRUN, "WORLD_SIZE": "9" * 5000}, "WORLD_SIZE: must be a whole number from 1 to 1000000, got '999"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE: must be a whole number from 1 to 4 (WORLD_SIZE"),
        ({**TORCHRUN, "WIREBENCH_SHARED_BY": "x"}, "WIREBENCH_SHARED_BY: must be a whole number"),
        ({**MPI, "OMPI_COMM_WORLD_LOCAL_RANK": "7"}, "OMPI_COMM_WORLD_LOCAL_RANK: must be a whole number from 0 to 1"),
        ({**STEP, "SLURM_PROCID": "4"}, "SLURM_PROCID: must be a whole number from 0 to 3 (SLURM_STEP_NUM_TASKS is 4)"),
        ({**FLUX, "FLUX_JOB_NNODES": "0"}, "FLUX_JOB_NNODES: must be a whole number from 1 to 4 (FLUX_JOB_SIZE is 4)"),
        ({**TORCHRUN, "GROUP_WORLD_SIZE": "zz"}, "GROUP_WORLD_SIZE: must be a whole number from 1 to 4 (WORLD_SIZE is"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "9"}, "SLURM_STEP_TASKS_PER_NODE: must be counts from 1 to 4, such as"),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x"}, "SLURM_STEP_TASKS_PER_NODE: must be counts from 1 to 4, such"),
        ({**STEP, "SLURM_LOCALID": "2"}, "SLURM_LOCALID: must be a whole number from 0 to 1 (SLURM_STEP_TASKS_PER_"),
        ({"RANK": "1", "MASTER_ADDR": "h", "MASTER_PORT": "5"}, "WORLD_SIZE: is missing, RANK is 1"),
        ({"WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "5"}, "RANK: is missing, WORLD_SIZE is 2"),
        ({"HOROVOD_RANK": "0"}, "HOROVOD_SIZE: is missing, HOROVOD_RANK is 0"),
        ({"SLURM_PROCID": "1", "SLURM_STEP_ID": "0"}, "SLURM_STEP_NUM_TASKS: is missing, SLURM_PROCID is 1"),
        ({**MPI, **TORCHRUN, "RANK": "0"}, "RANK: is 0, but OMPI_COMM_WORLD_RANK is 3 of as many processes; unset"),
        ({**STEP, **TORCHRUN, "RANK": "0"}, "RANK: is 0, but SLURM_PROCID is 3 of as many processes; unset"),
    ],
)
def test_a_place_that_cannot_be_is_refused_by_its_variable(environment, line):
    with pytest.raises(UserError) as refused:
        launched(environment)
    assert str(refused.value).startswith(line)


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_a_port_that_cannot_be_is_refused(port):
    environment = {**TORCHRUN, "MASTER_ADDR": "head", "MASTER_PORT": port}
    with pytest.raises(UserError, match=f"MASTER_PORT: must be a whole number from 1 to 65535, got '{port}'"):
        meeting_point(launched(environment), environment)
    assert meeting_point(ALONE, environment) is None


def test_a_launch_that_makes_no_sense_ends_in_one_line(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError) as refused:
        launched()
    launch.tell_error(refused.value, UserError.exit_code)
    assert capsys.readouterr().err == f"error: {refused.value}\n"
    with pytest.raises(SystemExit) as ended:
        launch.end_process(2)
    assert ended.value.code == 2


@pytest.mark.parametrize(("hosts", "waits"), [("1", False), ("2", True)])
def test_a_rank_stops_later_than_torchruns_of_several_hosts_hear_of_a_change(hosts, waits, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(launch.time, "sleep", slept.append)
    launch.await_agent({**TORCHRUN, "TORCHELASTIC_RUN_ID": "job", "GROUP_WORLD_SIZE": hosts})
    launch.await_agent(HOROVOD)
    assert slept == [launch.SECONDS_FOR_AGENTS] * waits


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        (BARE_SLURM, None),
        ({**BARE_SLURM, "MASTER_ADDR": "head"}, None),
        ({**BARE_SLURM, "MASTER_ADDR": "head", "MASTER_PORT": "29500"}, ("head", 29500)),
        (STEP, ("node007", 10_000 + 31 * 812 % 20_000 + 2)),
        ({**STEP, "SLURM_STEP_NODELIST": "login,node7"}, ("login", 15174)),
        ({**STEP, "SLURM_STEP_NODELIST": "gpu[3,5-6]-ib,cpu1"}, ("gpu3-ib", 15174)),
        ({**STEP, "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0"}, ("127.0.0.1", 15174)),
        ({**STEP, "MASTER_ADDR": "head"}, ("head", 15174)),
        ({**FLUX, "MASTER_ADDR": "[::1]", "MASTER_PORT": "29500"}, ("::1", 29500)),
        ({**TORCHRUN, "MASTER_ADDR": "head", "MASTER_PORT": ""}, None),
        (MPI, None),
        # Of an mpirun inside a step each node's daemon may know another list of nodes.
        ({**STEP, **MPI}, None),
    ],
)
def test_where_ranks_meet(environment, where):
    assert meeting_point(launched(environment), environment) == where


@pytest.mark.parametrize("name", ["auto", "local"])
@pytest.mark.parametrize("environment", [BARE_SLURM, STEP, MPI, MVAPICH, HYDRA, PALS, FLUX, {"PMIX_RANK": "1"}])
def test_no_process_of_several_trains_alone(environment, name, monkeypatch):
    """With no engine that could join them the launch is refused; with one it is taken, but where `local` was asked."""
    place = launched(environment)
    if (name, environment) == ("auto", STEP):
        assert engine_of(name, 0, place, environment) == "torch"
        environment = {**environment, "SLURM_STEP_NODELIST": ""}
    monkeypatch.setattr(launch, "_has_horovod", lambda: False)
    with pytest.raises(UserError) as refused:
        engine_of(name, 0, place, environment)
    said = str(refused.value)
    count = "an unknown number of" if "PMIX_RANK" in environment else "4"
    assert f"{count} processes were started by {place.launcher}" in said
    assert ("each would train alone" if name == "local" else "torchrun --nproc-per-node") in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("environment", "name", "engine"),
    [
        (MPI, "auto", "horovod"),
        ({**MPI, "MASTER_ADDR": "head", "MASTER_PORT": "29500"}, "auto", "torch"),
        ({**MPI, "MASTER_ADDR": "head", "MASTER_PORT": "29500"}, "horovod", "horovod"),
        (STEP, "horovod", "horovod"),
        (SHELL_IN_STEP, "auto", "local"),
        (BATCH_SHELL, "auto", "local"),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"}, "local", "local"),
    ],
)
def test_the_engine_that_can_join_them_is_taken(environment, name, engine, monkeypatch):
    monkeypatch.setattr(launch, "_has_horovod", lambda: True)
    assert engine_of(name, 0, launched(environment), environment) == engine


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


RETURNING = """
import multiprocessing, os
from wirebench.comm.launch import end_process

def rank(code, told):
    os.environ |= {"RANK": "0", "WORLD_SIZE": "2"}
    try:
        end_process(code, told=told)
    except SystemExit:
        print("returns", flush=True)

for place in ((0, False), (0, True), (3, False)):
    process = multiprocessing.get_context("fork").Process(target=rank, args=place)
    process.start()
    process.join()
    print(process.exitcode, flush=True)
"""


def test_a_forked_rank_returns_to_its_launcher_when_it_is_done() -> None:
    """Which waits for that; a rank that fails, or that it has told to end, ends at once."""
    done = subprocess.run([sys.executable, "-c", RETURNING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "returns\n0\n0\n3\n"), done.stderr
