"""Run a command line in a process of its own, with limits, forked from one that has imported everything."""

import os
import re
import resource
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.distributed.launch import ROOT
from tests.forkserver import forkserver

SECONDS = 60.0
MEMORY = 6 * 2**30
"""Beyond what a process has that imported torch: what asks for more is to say so in one line. Address space that is
only reserved does not count: the plotting library's JavaScript engine reserves more than that."""


class Ended(NamedTuple):
    """How it ended; `code` is None where it did not within SECONDS."""

    code: int | None
    out: str
    err: str


def run(program: str, words: Sequence[object], logs: Path) -> Ended:
    """Run `train` or `wirebench` with these words."""
    out, err = logs / "out", logs / "err"
    process = forkserver().Process(target=_become, args=(program, [str(word) for word in words], str(out), str(err)))
    process.start()
    process.join(SECONDS)
    code = process.exitcode
    if code is None:
        process.kill()
        process.join()
    said = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    return Ended(code, *said)


def _become(program: str, words: list[str], out: str, err: str) -> None:
    os.setsid()
    for number, path in ((1, out), (2, err)):
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(target, number)
        os.close(target)
    os.chdir(ROOT)
    kilobytes = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert kilobytes
    most = 1024 * int(kilobytes[1]) + MEMORY
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    sys.argv = [program, *words]
    try:
        code = _main(program)(words)
    except BaseException:
        traceback.print_exc()
        code = 99
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _main(program: str) -> Callable[[list[str]], int]:
    if program == "train":
        from wirebench.compose import run as train

        return train.main
    from wirebench.cli.main import main

    return main
