"""The command of a record: the launcher's words, wherever they can be had from."""

import os
import shlex
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest
from torch import device

from tests.comm.test_launch import BARE_SLURM, TORCHRUN
from wirebench.comm.launch_command import TOLD, command, launcher_words, typed
from wirebench.telemetry import environment
from wirebench.utils.package import TOP


def test_without_a_launcher_it_is_this_process():
    assert command() == shlex.join(sys.orig_argv)


@pytest.mark.parametrize(
    ("line", "launcher", "words"),
    [
        ("/v/bin/python /v/bin/torchrun --nproc-per-node 2 train.py c.toml", "torchrun", "torchrun --nproc-per-node 2"),
        ("python3 -m torch.distributed.run --standalone train.py", "torchrun", "python -m torch.distributed.run"),
        ("/v/bin/python /v/bin/wirebench torchrun --nnodes 2 x.py", "torchrun", "wirebench torchrun --nnodes 2"),
        ("python -m wirebench torchrun --nnodes 2:4 train.py", "torchrun", "wirebench torchrun --nnodes 2:4"),
        ("/v/bin/python /v/bin/horovodrun -np 2 python train.py", "horovodrun", "horovodrun -np 2 python train.py"),
        ("mpirun -x WANDB_API_KEY=abc -x A=b -n 2 python train.py", "mpirun", "mpirun -x WANDB_API_KEY=abc -x A=b -n"),
        ("bash -c x y srun", "srun", ""),
        ("srun -n 2 python train.py", "mpirun", ""),
        ("", "a PMIx launcher", ""),
    ],
)
def test_the_words_of_a_launchers_process(line, launcher, words):
    found = launcher_words(line.split(), launcher)
    assert found[: len(words.split())] == words.split()
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/v/bin/python3 /v/bin/wirebench cluster run -- python train.py", "wirebench cluster run -- python train.py"),
        ("python -m wirebench cluster run -- true", "python -m wirebench cluster run -- true"),
        ("python", "python"),
    ],
)
def test_the_words_that_were_typed(line, words):
    assert typed(line.split()) == words


def test_what_a_launcher_told_is_recorded_without_its_secrets(monkeypatch):
    for key, value in {**TORCHRUN, TOLD: "wirebench cluster run -- env WANDB_PASS=abc train.py"}.items():
        monkeypatch.setenv(key, value)
    assert environment.capture(device("cpu"))["command"] == "wirebench cluster run -- env WANDB_PASS=... train.py"


def test_a_launcher_that_is_no_ancestor_is_rebuilt_from_what_it_told(monkeypatch):
    for key, value in BARE_SLURM.items():
        monkeypatch.setenv(key, value)
    assert command() == f"srun --ntasks 4 {shlex.join(sys.orig_argv)}"
    monkeypatch.setenv(TOLD, "wirebench cluster run --layout 2+2 -- python train.py")
    assert command() == os.environ[TOLD]


@pytest.mark.parametrize(
    ("module", "program"), [(None, "train.py"), ("wirebench.__main__", "-m wirebench"), ("mine.train", "-m mine.train")]
)
def test_torchruns_words_name_a_script_or_a_module(module, program, monkeypatch):
    for key, value in TORCHRUN.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(sys, "argv", ["train.py", "a b"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", module and ModuleSpec(module, None))
    assert command() == f"torchrun --nnodes 2 --nproc-per-node 2 {program} 'a b'"


def test_a_rank_has_an_ancestors_words(tmp_path):
    """A launcher by name: its child, as a rank, finds it."""
    launcher = tmp_path / "torchrun"
    ask = "from wirebench.comm.launch_command import command; print(command())"
    launcher.write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {ask!r}], check=True)\n")
    done = subprocess.run(
        [sys.executable, str(launcher), "--nproc-per-node", "4", "a b"],
        cwd=TOP,
        env={**os.environ, "PYTHONPATH": str(TOP), **TORCHRUN},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "torchrun --nproc-per-node 4 'a b'\n"
