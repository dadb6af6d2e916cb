"""The live line on a pseudo-terminal and the plain lines everywhere else."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from wirebench.training.progress import Progress, silent

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
from wirebench.training.progress import Progress
progress = Progress()
progress.start(20, 0)
progress.note("one [red]note")
for step in range(20):
    progress.step(step, 0, 1234.5, 0.25, 12.5)
for batch in range(3):
    progress.evaluation(batch + 1, 3)
progress.epoch(0, 0.25, 0.875, 3.0)
progress.close()
"""


class Time:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def plain(total_steps=100, first_step=0):
    time, text = Time(), io.StringIO()
    progress = Progress(console=Console(file=text, width=40), now=time)
    progress.start(total_steps, first_step)
    return progress, time, text


def test_plain_lines_come_at_most_every_five_seconds():
    progress, time, text = plain()
    for step in range(100):
        time.now += 0.5
        progress.step(step, 2, 1234.5, 0.25, 12.5)
    printed = text.getvalue().splitlines()
    assert len(printed) == 10
    assert printed[0] == "epoch 2  step 10/100  1234 images/s  loss 0.2500  mean wire 12.5 MB/s  ETA 0:00:45"
    assert printed[-1].endswith("ETA 0:00:00")


def test_remaining_time_counts_only_this_runs_steps():
    progress, time, text = plain(total_steps=100, first_step=90)
    time.now = 8.0
    progress.step(93, 0, 1.0, 1.0, 1.0)
    assert "step 94/100" in text.getvalue() and text.getvalue().endswith("ETA 0:00:12\n")


def test_an_evaluation_shows_how_far_it_is():
    progress, time, text = plain()
    for batch in range(40):
        time.now += 0.5
        progress.evaluation(batch + 1, 40)
    assert text.getvalue().splitlines() == [f"evaluating  {batch} of 40 batches" for batch in (10, 20, 30, 40)]


def test_every_epoch_has_its_line():
    progress, _, text = plain()
    progress.epoch(3, 0.5, 0.9123, 12.34)
    progress.epoch(4, float("nan"), None, 1.0)
    assert text.getvalue().splitlines() == [
        "epoch 3 done  loss 0.5000  top1 0.9123  12.3 s",
        "epoch 4 done  loss nan  1.0 s",
    ]


def test_piped_output_is_plain_ascii_even_where_colour_is_forced():
    environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["one [red]note", "epoch 0 done  loss 0.2500  top1 0.875  3.0 s"]


def test_terminal_shows_one_line_that_is_redrawn():
    output = on_terminal(SCRIPT)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output)
    assert "20/20" in text and "1234 images/s" in text and "loss 0.2500" in text and "ETA 0:00:00" in text
    assert "one [red]note" in text and "epoch 0 done" in text
    assert "\x1b[?25l" in output and output.rstrip().endswith("\x1b[?25h"), "the cursor is hidden, then shown again"


def on_terminal(script):
    main, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, env=environment, stdout=terminal)
    os.close(terminal)
    pieces = []
    try:
        while piece := os.read(main, 65536):
            pieces.append(piece)
    except OSError:
        # Linux ends a pseudo-terminal with EIO instead of an empty read.
        assert pieces
    os.close(main)
    assert process.wait(60) == 0
    return b"".join(pieces).decode()


def test_close_may_be_called_again():
    progress, _, _ = plain()
    progress.close()
    progress.close()


def test_every_rank_but_0_shows_nothing(capsys):
    progress = silent()
    progress.start(1, 0)
    progress.step(0, 0, 1.0, 1.0, 1.0)
    progress.evaluation(1, 2)
    progress.epoch(0, 1.0, None, 1.0)
    progress.note("x")
    progress.close()
    assert capsys.readouterr() == ("", "")
