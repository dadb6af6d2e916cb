"""What train.py says before torch is imported, and that nothing of it needs torch."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distributed.launch import CONFIG, here
from wirebench.compose import run as train
from wirebench.compose.startup import banner
from wirebench.config import loader

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = 7


@pytest.fixture
def train_without_torch(tmp_path):
    """Run train.py where importing torch ends the process: returns (exit code, standard output, standard error)."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text(f"import os\nos._exit({IMPORTED})\n")

    def run(*arguments, stdout=subprocess.PIPE, **environment):
        settings = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", **environment}
        command = [sys.executable, "train.py", *arguments]
        done = subprocess.run(
            command, cwd=ROOT, env=settings, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_what_starts_is_said_before_torch_is_imported(train_without_torch):
    code, out, err = train_without_torch("configs/smoke.toml", "compressor.name=topk", "output.dir=/tmp/x")
    first, second = out.splitlines()
    assert first == ("smoke: local x 4, resnet_cifar on digits, compressor topk, scheduler fused, output /tmp/x")
    assert second.endswith(" s  importing torch")
    assert (code, err) == (IMPORTED, "")


def test_ctrl_c_while_torch_is_imported_ends_it_without_a_traceback(train_without_torch, tmp_path):
    (tmp_path / "torch/__init__.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    code, _, err = train_without_torch("configs/smoke.toml")
    assert (code, err) == (-signal.SIGINT, "")


SENDS = """
import os, sys

def hook(event, arguments, sent=[]):
    if event == "import" and arguments[0] == os.environ["AT_IMPORT"] and not sent:
        sent.append(1)
        for _ in range(int(os.environ["TIMES"])):
            os.kill(os.getpid(), int(os.environ["SIGNAL"]))

sys.addaudithook(hook)
"""
TRAIN, COMMAND = ("train.py", "configs/smoke.toml"), ("-m", "wirebench", "show", "results")


def test_a_signal_at_any_import_ends_a_program_without_a_traceback(tmp_path: Path) -> None:
    """All at once: each process ends where it is."""
    (tmp_path / "sitecustomize.py").write_text(SENDS)
    imports = ("wirebench", "wirebench.utils.entered", "wirebench.compose.startup", "torch")
    moments: list[tuple[tuple[str, ...], str]] = [(TRAIN, at) for at in imports]
    moments += [(COMMAND, at) for at in ("wirebench.cli.menu", "rich.console")]
    cases = [(*moment, signal.SIGINT, times) for times, moment in enumerate(moments, 1)]
    cases += [(TRAIN, "wirebench", signal.SIGTERM, 1), (TRAIN, "torch", signal.SIGTERM, 1)]
    started = []
    for words, at, number, times in cases:
        settings = {"AT_IMPORT": at, "SIGNAL": str(int(number)), "TIMES": str(times)}
        started.append(
            subprocess.Popen(
                [sys.executable, *words],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", **settings},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    for case, process in zip(cases, started, strict=True):
        _, err = process.communicate(timeout=120)
        assert (process.returncode, err) == (-case[2], ""), case


@pytest.mark.parametrize("how", ["raised", "kept", "another-error"])
def test_ctrl_c_while_a_run_is_composed_is_heard(how: str, tmp_path: Path, monkeypatch, capsys) -> None:
    """Also where a callback swallows the exception, or C++ code makes another one of it."""
    real = train.compose

    def compose(*arguments, **options):
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            if how == "raised":
                raise
            if how == "another-error":
                raise RuntimeError("KeyboardInterrupt") from None
            return real(*arguments, **options)

    monkeypatch.setattr(train, "compose", compose)
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        code = here(2, [CONFIG, f"output.dir={tmp_path / 'run'}", "train.max_steps=2"])
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL, "a second one ends the process"
    finally:
        signal.signal(signal.SIGINT, before)
    assert code == 130
    assert capsys.readouterr().err == "error: stopped at once\n"
    assert not (tmp_path / "run/record.json").exists() and not (tmp_path / "run/run.lock").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["configs/smoke.toml", "trein.epochs=1"], "error: trein: no such section; did you mean 'train'?"),
        (["configs/smoke.toml", "engine.name=torch"], "error: engine.name: 'torch' needs its launcher: torchrun"),
        (["configs/smoke.toml", "--train.epochs=1"], "error: --train.epochs=1: settings are given without dashes"),
        ([], "which config?"),
    ],
)
def test_a_mistake_is_told_without_torch(train_without_torch, arguments, words):
    code, out, err = train_without_torch(*arguments)
    assert (code, out) == (2, "")
    assert words in err and "Traceback" not in err


def test_torchruns_summary_gets_the_cause(train_without_torch, tmp_path):
    """Its own traceback cannot be prevented from here, but ends with this line."""
    file = tmp_path / "error.json"
    rank_0 = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    code, _, err = train_without_torch("configs/smoke.toml", "x.y=1", TORCHELASTIC_ERROR_FILE=str(file), **rank_0)
    assert code == 2 and err.startswith("error: rank 0: x: no such section")
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    failure = ProcessFailure(local_rank=0, pid=1, exitcode=2, error_file=str(file))
    assert failure.error_file_data["message"]["message"] == err.strip() and failure.timestamp > 0


def test_another_rank_says_nothing(train_without_torch):
    rank_1 = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert train_without_torch("configs/smoke.toml", **rank_1) == (IMPORTED, "", "")


def test_a_reader_that_has_gone_ends_nothing(train_without_torch):
    read, write = os.pipe()
    os.close(read)
    code, _, err = train_without_torch("configs/smoke.toml", stdout=write)
    os.close(write)
    assert (code, err) == (IMPORTED, "")


def test_the_banner_has_what_the_config_has():
    given = loader.load(ROOT / "configs/smoke.toml", ["collective.name=ring", "engine.workers=3", "output.dir=/tmp/x"])
    assert banner(given) == (
        "smoke: local x 3, resnet_cifar on digits, compressor none, scheduler fused, collective ring, output /tmp/x"
    )


SAID = """\
[0]<stdout>:smoke: horovod x 2
[1]<stderr>:Traceback (most recent call last):
[1]<stderr>:  File "train.py", line 3, in <module>
[0]<stderr>:error: rank 0: compressor.name: no compressor 'topkk'
Process 0 exit with status code 2.
Traceback (most recent call last):
  File "/v/bin/horovodrun", line 8, in <module>
    sys.exit(run_commandline())
  File "/v/horovod/runner/gloo_run.py", line 284, in launch_gloo
    raise RuntimeError('Horovod detected that one or more processes exited with non-zero '
{kind}: Horovod detected that a process failed
Process name: 0
"""


@pytest.mark.parametrize("kind", ["RuntimeError", "ValueError"])
def test_make_run_leaves_the_launchers_traceback_out(kind):
    """A rank's own stays."""
    command = ["make", "-s", "--eval", "plain: ; @$(PLAIN)", "plain"]
    done = subprocess.run(command, cwd=ROOT, input=SAID.format(kind=kind), capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "smoke: horovod x 2",
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        "error: rank 0: compressor.name: no compressor 'topkk'",
        "Process 0 exit with status code 2.",
        "Horovod detected that a process failed",
        "Process name: 0",
    ]
