"""torchrun with ranks that are soon back: they are forked from a process that has imported what they need.

As a rule torchrun starts a Python for each rank, which imports torch again. That takes about three seconds of a core
for each rank after every restart. With `--start-method forkserver --run-path` it forks its ranks from Python's fork
server instead, a process that lives as long as torchrun does. Here the server imports while torchrun itself does. It
runs nothing else: it holds no rank's thread, connection or GPU.
"""

import argparse
import importlib.util
import logging
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path

from wirebench.errors import UserError
from wirebench.utils.files import shorten_socket_folder

RENDEZVOUS = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
OPTIONS = ("--start-method", "forkserver", "--run-path", "--rdzv-conf", RENDEZVOUS)
"""Defaults; the user's options come later, and override them."""
REFUSED = 2
"""Exit code of a rank that refuses its input, and of argparse."""
AS_MODULE = str(Path(__file__).with_name("as_module.py"))
ENVIRONMENT = {
    # A host that joins later would wait for ever in a store that agents share between restarts (torch 2.15).
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # Where torchrun starts a Python for each rank, it does so with -u.
    "PYTHONUNBUFFERED": "1",
}


def launch(words: Sequence[str], preload: Sequence[str]) -> int:
    """Run torchrun with these words: options, a script's path or -m and a module, the script's own.

    Return its exit code. UserError for options that it refuses, or a script that is not there.

    preload  modules that the script imports
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    shorten_socket_folder()
    multiprocessing.set_forkserver_preload(["torch.distributed.run", *preload])
    forkserver.ensure_running()
    elastic = "torch.distributed.elastic.multiprocessing"
    logging.getLogger(f"{elastic}.api").addFilter(_with_text)
    # "No error file defined for parent": torchrun has none when a user starts it.
    logging.getLogger(f"{elastic}.errors.error_handler").setLevel(logging.CRITICAL)
    return _run(words)


def _run(words: Sequence[str]) -> int:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    started = _by_path(words, run.parse_args(words))
    try:
        run.main([*OPTIONS, *started])
    except ChildFailedError as failed:  # torchrun's report of the rank; a traceback of this process says nothing more
        rank, failure = failed.get_first_failure()
        refused = failure.exitcode == REFUSED
        print(f"rank {rank} ended with exit code {REFUSED}, see its line above" if refused else failed, file=sys.stderr)
        return REFUSED if refused else 1
    except ValueError as refused:
        raise UserError(f"torchrun refuses its options: {refused}") from refused
    return 0


def _by_path(words: Sequence[str], asked: argparse.Namespace) -> list[str]:
    """The words with a script in place of a module: run by a path is all that a forked rank can be.

    UserError for a module that is not on the search path, or a script that is not there.
    """
    if not asked.module:
        if not asked.no_python and not Path(asked.training_script).exists():
            raise UserError(f"{asked.training_script}: no such file")
        return list(words)
    # Of its first part alone: of another one the search would import the package here.
    if importlib.util.find_spec(asked.training_script.partition(".")[0]) is None:
        raise UserError(f"-m: no module {asked.training_script!r} can be found (its folder on PYTHONPATH?)")
    rest = list(asked.training_script_args)
    options = list(words)[: len(words) - len(rest) - 1]
    kept = [word for word in options if not ((word.startswith("-") and "--module".startswith(word)) or word == "-m")]
    return [*kept, AS_MODULE, asked.training_script, *rest]


def _with_text(record: logging.LogRecord) -> bool:
    """Write out here how a rank has failed: torch imports its compiler for that, two seconds of a core (torch 2.15).

    A rank that refused its input has said why: of that nothing is written.
    """
    if record.exc_info:
        if isinstance(record.args, tuple) and record.args[:1] == (REFUSED,):
            return False
        record.exc_text, record.exc_info = logging.Formatter().formatException(record.exc_info), None
    return True
