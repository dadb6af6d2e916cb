"""Runs that other scripts start one after the other: how they are shown, ended with their starter, and thinned out."""

import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from wirebench.cluster.signals import Interrupted, Relay

ROOT = Path(__file__).resolve().parents[1]
KEPT = ("record.json", "config.toml")
INTERRUPTED = 128 + signal.SIGINT

Command = list[str]
Launch = Callable[[Command], int]
"""Runs a command in the repository; returns its exit code."""


def run(command: Command) -> int:
    """Run `command` in the repository and return its exit code; a signal that ends this process ends it first.

    Raises Interrupted then, after the command has saved what it saves: no run goes on alone, into a folder that the
    next start would use too.
    """
    print(f"+ {shown(command)}", file=sys.stderr, flush=True)
    with Relay(), subprocess.Popen(command, cwd=ROOT) as started:
        try:
            return started.wait()
        except Interrupted as stop:
            # A terminal's Ctrl-C has reached it already, and twice means at once.
            if stop.exit_code != INTERRUPTED:
                started.terminate()
            started.wait()
            raise


def shown(command: Command) -> str:
    """The command as one types it in the repository."""
    return shlex.join(["python", *command[1:]])


def keep(folder: Path) -> None:
    """Remove everything of a run's folder but KEPT."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in KEPT:
            path.unlink()
