"""torchrun with ranks that are soon back: they are forked from a process that has imported what they need.

As a rule torchrun starts a Python for each rank, which imports torch again, about three seconds of a core apiece after
every restart. Told `--start-method forkserver --run-path`, it forks its ranks from Python's fork server instead, a
process that lives as long as torchrun does. Here that one begins to import beside torchrun's own imports. It runs
nothing else: nothing of a rank is in it, no thread, no connection, and no GPU.
"""

import argparse
import importlib.util
import logging
import multiprocessing
import os
from collections.abc import Sequence
from multiprocessing import forkserver

from wirebench.errors import UserError
from wirebench.utils.files import shorten_socket_folder

RENDEZVOUS = "last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3"
OPTIONS = ("--start-method", "forkserver", "--run-path", "--rdzv-conf", RENDEZVOUS)
"""Those that the user gives come later, and count."""
ENVIRONMENT = {
    # A host that comes later would wait in vain in a store that agents share between restarts (torch 2.15).
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    # Where torchrun starts a Python for each rank, it does so with -u.
    "PYTHONUNBUFFERED": "1",
}


def launch(words: Sequence[str], preload: Sequence[str]) -> None:
    """Run torchrun with these words: options, a script's path or -m and a module, the script's own.

    preload  modules that the script imports
    Raises UserError for a module that cannot be found.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    shorten_socket_folder()
    multiprocessing.set_forkserver_preload(["torch.distributed.run", *preload])
    forkserver.ensure_running()
    logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(_with_text)
    from torch.distributed import run

    run.main([*OPTIONS, *_by_path(words, run.parse_args(words))])


def _by_path(words: Sequence[str], asked: argparse.Namespace) -> list[str]:
    """The words with a module's file in its place: run by its path is all that a forked rank can be."""
    if not asked.module:
        return list(words)
    at = list(words).index(asked.training_script)
    flag = max(place for place, word in enumerate(words[:at]) if word in ("-m", "--module"))
    path = _file_of(asked.training_script)
    return [*words[:flag], *words[flag + 1 : at], path, *words[at + 1 :]]


def _file_of(module: str) -> str:
    """What `python -m` runs."""
    for name in (f"{module}.__main__", module):
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            continue  # a module has no __main__, nor has a package that does not exist
        if spec is not None and spec.origin:
            return spec.origin
    raise UserError(f"-m: no module {module!r} can be found")


def _with_text(record: logging.LogRecord) -> bool:
    """Write out here how a rank has failed: torch imports its compiler for that, two seconds of a core (torch 2.15)."""
    if record.exc_info:
        record.exc_text, record.exc_info = logging.Formatter().formatException(record.exc_info), None
    return True
