"""Output that is lost costs what it would have shown: not the run, its record or its exit code."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TextIO, cast

import pytest

from tests.distributed.ends import checkpoints, record
from tests.distributed.launch import CONFIG, here
from wirebench.comm.stop import Stopper
from wirebench.utils.terminal import LossyStream, tell_of_loss

ROOT = Path(__file__).resolve().parents[2]


def pipe_without_reader() -> TextIO:
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


def full_disk() -> TextIO:
    return open("/dev/full", "w")


LOSSES = {pipe_without_reader: "Broken pipe", full_disk: "No space left on device"}


@pytest.mark.parametrize(("stream", "why"), LOSSES.items(), ids=["pipe", "disk"])
def test_a_run_without_its_output_ends_well(
    stream: object, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert callable(stream)
    with stream() as lost:
        monkeypatch.setattr(sys, "stdout", cast(TextIO, LossyStream(lost)))
        monkeypatch.setattr(sys, "stderr", cast(TextIO, LossyStream(sys.stderr)))
        assert here(2, [CONFIG, f"output.dir={tmp_path}"]) == 0
    assert record(tmp_path)["status"] == "finished"
    assert checkpoints(tmp_path)[-1].name == "step-00000012"
    [line] = capsys.readouterr().err.splitlines()
    assert line == f"warning: standard output is lost ({why}); the run continues without output"


SCRIPT = """
import os, sys
from wirebench.utils.terminal import outlive_output
outlive_output()
print("x" * 100_000)
print("error", file=sys.stderr)
sys.stdout.write("what is still buffered at the end")
sys.exit(7)
"""


@pytest.mark.parametrize("redirected", [">/dev/full", ">&-", "2>&-", ">&- 2>&-", ">/dev/full 2>/dev/full", "| true"])
def test_the_exit_code_is_the_programs(redirected: str) -> None:
    """Also when the interpreter flushes at its end, which would make it 120 and print an exception."""
    command = f'set -o pipefail; "{sys.executable}" -c "$1" {redirected}'
    done = subprocess.run(["bash", "-c", command, "bash", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 7
    assert done.stderr == ("" if "2>" in redirected else "error\n")


def test_a_closed_descriptor_is_not_left_to_the_next_file(tmp_path: Path) -> None:
    """What a library prints to descriptor 1 would go into the next file that is opened: a checkpoint, for example."""
    script = (
        "import os, sys\nfrom wirebench.utils.terminal import outlive_output\noutlive_output()\n"
        "file = open(sys.argv[1], 'w')\nos.write(1, b'printed by a library')\nos.write(2, b'and another')\n"
    )
    command = f'"{sys.executable}" -c "$1" "$2" >&- 2>&-'
    subprocess.run(["bash", "-c", command, "bash", script, str(tmp_path / "file")], cwd=ROOT, check=True, timeout=60)
    assert (tmp_path / "file").read_bytes() == b""


def test_nothing_is_said_of_a_loss_that_nobody_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    """`train.py --list | head`: whoever closed it has seen enough."""
    with pipe_without_reader() as lost:
        stream = LossyStream(lost)
        for _ in range(2):
            assert stream.write("text") == 4
            stream.flush()
        assert stream.lost == "Broken pipe"
    assert capsys.readouterr() == ("", "")
    tell_of_loss()  # where the streams are ordinary ones there is nothing to do


@pytest.mark.parametrize(
    ("before", "while_training"), [(signal.SIG_DFL, signal.SIG_IGN), (signal.SIG_IGN, signal.SIG_IGN)]
)
def test_a_terminal_that_hangs_up_ends_nothing(
    before: signal.Handlers, while_training: signal.Handlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = signal.signal(signal.SIGHUP, before)
    try:
        stopper = Stopper(None)
        stopper.listen()
        assert signal.getsignal(signal.SIGHUP) == while_training
        stopper.close()
        assert signal.getsignal(signal.SIGHUP) == before
    finally:
        signal.signal(signal.SIGHUP, mine)
