"""Verbs in the test's own process, ended as the command ends them."""

import contextlib
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from wirebench.cli.main import main

ROOT = Path(__file__).resolve().parents[2]


class Done(NamedTuple):
    """How a verb ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def verb(*words: str) -> Callable[[Sequence[str]], int]:
    """What runs `wirebench WORDS...` with further words; returns the exit code."""
    return lambda arguments: main([*words, *arguments])


def run(*words: object, cwd: Path = ROOT) -> Done:
    """Run `wirebench WORDS...` in a folder."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(word) for word in words])
    return Done(code, out.getvalue(), err.getvalue())
