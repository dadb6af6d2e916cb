"""Slow tests, proofs and matrices that take minutes, run when asked for (-m slow); so do many random examples.

Tests that measure time are slow. Weekly tests are slow ones that `make test-all` leaves out, too.
"""

import atexit
import functools
import gc
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Generator
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.assertion import rewrite
from hypothesis import settings

from tests.forkserver import share, sync_nothing
from wirebench.errors import UserError
from wirebench.utils import this_machine

LONG = {"distributed", "dropin", "doctor", "elastic", "fuzz", "comm"}
"""Folders whose tests start processes or read all results. They come first: a file of a few long tests that is the last
one (pytest-xdist's own order is by number) leaves the other core with nothing to do."""

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

settings.register_profile("day", max_examples=20, deadline=None)
settings.register_profile("full", max_examples=100, deadline=None)
settings.load_profile("day")
FOREIGN = re.compile(
    r"(GLOO|NCCL|TORCH_NCCL|TORCH_FR|TORCH_DISTRIBUTED|TORCHELASTIC|HOROVOD|OMPI|PMI|PMIX|PALS|MV2|FLUX|SLURM)_.*"
    r"|((LOCAL|GROUP|ROLE)_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|WIREBENCH_(RESULTS|COUNTS|SHARED_BY|LAUNCHED_BY|LINK_MBIT)"
    r"|GIT_(DIR|WORK_TREE|INDEX_FILE|OBJECT_DIRECTORY|PREFIX)|FORCE_COLOR|TTY_(COMPATIBLE|INTERACTIVE)|COLUMNS|LINES"
)
"""Variables of launchers, back ends, git's hooks and terminals: here tests alone say them, and they are about committed
results, or about folders of their own."""
for each in filter(FOREIGN.fullmatch, list(os.environ)):
    del os.environ[each]
if "PYTEST_XDIST_WORKER" not in os.environ:
    # What the user's git does at a commit, as signing it, it does not do in tests' repositories.
    known = int(os.environ.get("GIT_CONFIG_COUNT", "0"))
    for place, (key, wish) in enumerate({"commit.gpgsign": "false", "core.hooksPath": os.devnull}.items(), known):
        os.environ |= {f"GIT_CONFIG_KEY_{place}": key, f"GIT_CONFIG_VALUE_{place}": wish}
    os.environ["GIT_CONFIG_COUNT"] = str(known + 2)


FLAGS = ["avx", "avx2", "f16c", "fma"]
FIXED: dict[str, Callable[..., Any]] = {
    "cpu": lambda: this_machine.CPU("Test Processor", FLAGS),
    "cores": lambda: 2,
    "all_cores": lambda: 2,
    "memory_bytes": lambda: 16 * 10**9,
    "free_memory_bytes": lambda: 8 * 10**9,
    "copy_bytes_per_second": lambda: 1.4e10,
    "free_disk_bytes": lambda folder: 10**12,
    "hostname": lambda: "test-host",
    "kernel": lambda: "6.0",
    "boot": lambda: "test-boot",
    "addresses": lambda: {"lo": "127.0.0.1", "eth0": "192.0.2.1"},
    "address_of": lambda name: "127.0.0.1",
    "link_mbit": lambda interface: 0.0,
    "interfaces": lambda: {
        "eth0": this_machine.Interface(("192.0.2.1",), True, 1500, 0.0, ""),
        "lo": this_machine.Interface(("127.0.0.1",), True, 65536, 0.0, ""),
    },
    "fabric_ports": lambda: [],
    "tcp_settings": lambda: {"tcp_rmem": "4096 131072 6291456", "tcp_wmem": "4096 16384 4194304"},
    "own_addresses_of": lambda name: ["192.0.2.1"],
}
"""In place of what the system says, so that no test decides by its machine. Other processes ask the system."""
REAL = {name: getattr(this_machine, name) for name in FIXED}


def pytest_addoption(parser: pytest.Parser) -> None:
    """How fast the memory is that tests see, on which nothing may depend; and a way to change what is printed."""
    parser.addoption("--memory-rate", type=float, default=1.0, metavar="X", help="times as fast as usual (1)")
    parser.addoption("--update", action="store_true", help="keep what is printed now as tests/golden")


def pytest_configure(config: pytest.Config) -> None:
    """Also while tests are collected, of which nothing is garbage."""
    gc.disable()
    sync_nothing()
    if hasattr(config, "workerinput"):
        # What it has told is on its way; to take some thousands of tests apart would keep a core busy for ten seconds.
        Finalize(None, os._exit, (0,), exitpriority=-200)
    else:
        _keep_temporary_files()
    _ask_git_once()
    rate = FIXED["copy_bytes_per_second"]() * config.getoption("memory_rate")
    FIXED["copy_bytes_per_second"] = lambda: rate
    _be(FIXED)
    # A shell that puts pytest into the background has it ignore Ctrl-C, and nohup a lost terminal; so would all
    # processes that it starts.
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    if whole and config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        share()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Of several workers each compiles a part of the tests first; otherwise, in a fresh checkout, each compiles all."""
    worker = getattr(session.config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode:
        return
    state, place = session.config.stash[rewrite.assertstate_key], int(worker["workerid"].removeprefix("gw"))
    for file in sorted(Path(__file__).parent.rglob("test_*.py"))[place :: worker["workercount"]]:
        kept = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
        if rewrite._read_pyc(file, kept) is None and rewrite.try_makedirs(kept.parent):
            source, code = rewrite._rewrite_test(file, session.config)
            rewrite._write_pyc(state, code, source, kept)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A hook and no fixture, so that fixtures of modules see the same machine as their tests."""
    _be(REAL if item.get_closest_marker("real_machine") else FIXED)
    return (yield)


def _keep_temporary_files() -> None:
    """Give all that tests start one folder for temporary files, and remove it at the end: torchrun leaves its logs.

    Pytest's own folders stay where they are: they outlive a failure, and other users may not enter them.
    """
    usual = tempfile.gettempdir()
    os.environ["PYTEST_DEBUG_TEMPROOT"] = usual
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tests-")
    os.chmod(tempfile.tempdir, 0o711)  # a test starts a cluster as another user
    # At the end of this process, after multiprocessing has removed its own folder there.
    Finalize(None, shutil.rmtree, (tempfile.tempdir, True), exitpriority=-200)


def _ask_git_once() -> None:
    """Hundreds of tests train, and their records name one commit; a test that has another checkout asks there."""
    from wirebench.telemetry import environment

    ask, top = environment.git, environment.TOP
    here = functools.cache(ask)
    environment.git = lambda: dict(here() or {}) or None if top == environment.TOP else ask()


def _be(machine: dict[str, Callable[..., Any]]) -> None:
    for name, function in machine.items():
        setattr(this_machine, name, function)


def pytest_collection_finish() -> None:
    """What is there now, modules and some thousands of tests, stays to the end: nobody need look through it again."""
    gc.freeze()
    gc.enable()
    atexit.register(gc.unfreeze)


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long ones first; of sampled ones some are slow, of paired ones some weekly. Without -m or -k, slow ones are left
    out.
    """
    _sample(items)
    _pair(items)
    for item in items:
        if item.get_closest_marker("weekly") or item.get_closest_marker("clock"):
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: item.path.parent.name not in LONG)
    if config.option.markexpr or config.option.keyword:
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


def _sample(items: list[pytest.Item]) -> None:
    """Mark as slow what is beyond the sample of a test's sets of parameters, or of a file's tests, of one set each.

    The first and the last ones stay.
    """
    sets: dict[str, dict[str, pytest.Item]] = {}
    counts: dict[str, int] = {}
    for item in items:
        closest = next(item.iter_markers_with_node("sampled"), None)
        if closest is None or item.get_closest_marker("slow"):
            continue
        (node, marker), test = closest, item.nodeid.partition("[")[0]
        of_file = isinstance(node, pytest.Module)
        whole, one = (node.nodeid, test) if of_file else (test, item.nodeid)
        counts[whole] = marker.args[0]
        if sets.setdefault(whole, {}).setdefault(one, item) is not item:
            item.add_marker(pytest.mark.slow)
    for whole, those in sets.items():
        kept = {round(place * (len(those) - 1) / max(counts[whole] - 1, 1)) for place in range(counts[whole])}
        for place, item in enumerate(those.values()):
            if place not in kept:
                item.add_marker(pytest.mark.slow)


def _pair(items: list[pytest.Item]) -> None:
    """Mark as weekly the sets of parameters of a paired test that add no new pair of values to the sets that are left.

    Sets that `make test` runs stay. GPU sets are chosen apart, since most machines skip them.
    """
    tests: dict[tuple[str, bool], list[tuple[pytest.Item, set[object]]]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("paired"):
            values = sorted((name, repr(value)) for name, value in item.callspec.params.items())
            pairs: set[object] = set(itertools.combinations(values, 2))
            where = item.nodeid.partition("[")[0], item.get_closest_marker("gpu") is None
            tests.setdefault(where, []).append((item, pairs))
    for sets in tests.values():
        quick = [pairs for item, pairs in sets if not item.get_closest_marker("slow")]
        met, left = set().union(*quick), [each for each in sets if each[0].get_closest_marker("slow")]
        while left:
            best = max(left, key=lambda each: len(each[1] - met))
            if best[1] <= met:
                break
            met |= best[1]
            left.remove(best)
        for item, _ in left:
            item.add_marker(pytest.mark.weekly)


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skip where the kernel or the system does not let anybody make namespaces."""
    from wirebench.cluster import namespaces as spaces

    try:
        spaces.check()
    except UserError as error:
        pytest.skip(str(error))
