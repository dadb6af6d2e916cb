"""Printed words, kept in tests/golden: a text that differs fails with the difference, `pytest --update` keeps it.

A session (NAME.txt) is what a terminal shows: after `$ ` a command, its further lines after `> `, then what it printed,
standard error after `! `, and [CODE] unless it is 0. It begins in an empty folder. `wirebench` runs in this process,
which is quicker, anything else in a shell. Lines that begin with `#` say what the next commands are about.
"""

import contextlib
import difflib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from wirebench.cli.main import main
from wirebench.compose import run as train
from wirebench.utils.package import TOP

FOLDER = Path(__file__).with_name("golden")
LONGEST_LIST = 60
"""Letters of a list of all plugins or keys that stay: another plugin changes no session."""


def check(name: str, text: str, update: bool) -> None:
    """Compare a text with the file NAME.txt, or keep it there."""
    path = FOLDER / f"{name}.txt"
    if update:
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != kept:
        lines = difflib.unified_diff(kept.splitlines(), text.splitlines(), str(path), "now", lineterm="", n=1)
        pytest.fail("\n".join([*lines, "as it should be? pytest --update keeps it"]), pytrace=False)


def played(session: str, folder: Path) -> str:
    """The session with what its commands print now, run in `folder`."""
    blocks = re.findall(r"^#.*\n|^\$ .*\n(?:> .*\n)*", session, re.MULTILINE)
    return "".join(block + _run(block, folder) if block.startswith("$") else block for block in blocks)


def _run(block: str, folder: Path) -> str:
    first, *more = block.splitlines()
    command = "\n".join([first.removeprefix("$ "), *(line.removeprefix("> ") for line in more)])
    code, out, err = _wirebench(command, folder) if command.startswith("wirebench ") else _shell(command, folder)
    assert code != 2 or (not out and err.count("\n") == 1), f"a mistake is one line: {command}\n{out}{err}"
    lines = [*out.splitlines(), *(f"! {line}" for line in err.splitlines()), *([f"[{code}]"] if code else [])]
    return "".join(f"{_shortened(line, folder)}\n" for line in lines)


def _wirebench(command: str, folder: Path) -> tuple[int, str, str]:
    out, err, threads = io.StringIO(), io.StringIO(), torch.get_num_threads()
    typed = shlex.split(command.replace("$TOP", str(TOP)))
    _, *words = typed
    with (
        contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        patch.object(sys, "argv", typed), patch.object(sys, "orig_argv", typed),
    ):  # fmt: skip
        try:
            code = train.main(words[1:]) if words[:1] == ["train"] else main(words)
        finally:
            torch.set_num_threads(threads)
    return code, out.getvalue(), err.getvalue()


def _shell(command: str, folder: Path) -> tuple[int, str, str]:
    environment = {**os.environ, "TOP": str(TOP)}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def _shortened(line: str, folder: Path) -> str:
    line = line.replace(str(folder), "HERE").replace(str(TOP), "TOP")
    line = re.sub(r"(not valid (?:TOML|JSON): ).*", r"\1...", line)  # Python's words, which versions change
    return re.sub(rf"(there is: )(?=.{{{LONGEST_LIST}}}).*", r"\1...", line).rstrip()
