"""Loops in C for a CPU, which read memory once where PyTorch's functions read it a dozen times.

Each stands beside a function of PyTorch, its twin, and its results are the twin's to the bit. The machine's C compiler
builds them, for its own processor, before the first exchange of a method that uses them; the result stays in the user's
cache. Without a compiler, or with WIREBENCH_NATIVE=0, the twins run. Several threads share the work.
"""

import contextlib
import ctypes
import os
import shlex
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, c_float, c_int, c_int64, c_void_p
from functools import cache
from hashlib import sha256
from pathlib import Path
from threading import Thread

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from wirebench.errors import UserError
from wirebench.utils.files import write_atomically

BUILD_SECONDS = 60.0
"""After which a compiler counts as stuck."""
SOURCE = Path(__file__).with_name("narrow.c")
OWN_PROCESSOR = "-march=native"
"""Compilers for some processors do not know it; without it the loops are slower, and the results the same."""
FLAGS = (
    "-O2", "-fvect-cost-model",  # as fast as -O3, and built in half the time
    "-fopenmp-simd", "-fno-fast-math", "-fno-math-errno", "-fno-trapping-math",
    "-ffp-contract=off",  # a product is rounded before it is added, as the twins do
    "-std=gnu11", "-fPIC", "-shared",
)  # fmt: skip
ARGUMENTS = {
    "wirebench_quantise": [
        c_int64, c_int64, c_int, c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_int, c_void_p, c_void_p,
        c_int64,
    ],
    "wirebench_restore": [
        c_int64, c_int64, c_int, POINTER(c_void_p), c_int64, c_int64, c_int64, c_void_p, c_int64, c_float,
    ],
}  # fmt: skip
SHARE = 1 << 20
"""Elements that a thread has at least: its start takes a fraction of their time."""


def usable(x: Tensor) -> bool:
    """Whether the loops are for this vector: fp32 on a CPU, without gaps, and they can be built."""
    return x.device.type == "cpu" and x.dtype == torch.float32 and x.is_contiguous() and library() is not None


@cache
def library() -> ctypes.CDLL | None:
    """The loops, built where they are not in the cache, which takes seconds; None where they cannot be.

    Raises UserError for a WIREBENCH_NATIVE that is neither 0 nor 1.
    """
    choice = os.environ.get("WIREBENCH_NATIVE", "1")
    if choice not in ("0", "1"):
        raise UserError(f"WIREBENCH_NATIVE is 0 or 1, got {choice!r}")
    if choice == "0":
        return None
    try:
        return _loaded()
    except (OSError, ValueError, AttributeError, subprocess.SubprocessError) as error:
        warnings.warn(f"quantised_sum runs without its loops in C, and slower: {_reason(error)}", stacklevel=2)
        return None


def _reason(error: Exception) -> str:
    """The first line of what the compiler said, or of the error."""
    printed = getattr(error, "stderr", None) or ""
    # What a compiler had printed before its time was over is bytes.
    text = printed.decode(errors="replace") if isinstance(printed, bytes) else printed
    if isinstance(error, subprocess.TimeoutExpired):
        text = f"the compiler took longer than {error.timeout:g} s"
    return (text.strip() or str(error).strip()).partition("\n")[0] or "no reason is given"


def quantise(
    values: Tensor,
    chunk: int,
    form: int,
    message: Tensor,
    chunks: int,
    keep: bool,
    noise: tuple[Tensor, Tensor] | None,
) -> None:
    """Write the message of `values`, and leave in them what it cuts off. Twin: `narrow.quantised`.

    form     its place in LOOPS
    message  (parts, bytes), of `chunks` chunks a part
    noise    the row, and the words of its stretches; None: to the nearest
    """
    loops = library()
    assert loops is not None and usable(values) and message.is_contiguous()
    row, words = (noise[0].data_ptr(), noise[1].data_ptr()) if noise else (None, None)
    _shared(
        loops.wirebench_quantise, values.numel(), (values, message, noise),
        form, values.data_ptr(), values.numel(), chunk, chunks, len(message), message.data_ptr(), keep,
        row, words, noise[0].numel() if noise else 1,
    )  # fmt: skip


def restore(messages: Sequence[Tensor], chunk: int, form: int, chunks: int, out: Tensor, size: int = 1) -> None:
    """Write the sum of what arrives of `messages`, in their order, over `size`, to `out`. Twins: `narrow.added`, and
    of one message `narrow.restored`.

    form      its place in LOOPS
    messages  each of `chunks` chunks
    out       (n,) with n up to `chunks` chunks
    """
    loops = library()
    assert loops is not None and usable(out)
    whole = [each.contiguous() for each in messages]
    # The loops read as many bytes of each message as the chunks have. Callers count those in the first message, so that
    # a shorter one would be read beyond its end.
    assert out.numel() <= chunks * chunk and len({each.numel() for each in whole}) == 1, "messages of these chunks"
    places = (c_void_p * len(whole))(*(each.data_ptr() for each in whole))
    _shared(
        loops.wirebench_restore, out.numel(), (whole, out),
        form, places, len(whole), chunk, chunks, out.data_ptr(), out.numel(), size,
    )  # fmt: skip


def _shared(loop: Callable[..., None], numel: int, held: object, *arguments: object) -> None:
    """Run a loop over `numel` elements in shares, by at most as many threads as PyTorch has.

    held  what owns the memory that the arguments point to: Ctrl-C ends the wait for threads that still write there
    """
    shares = max(min(torch.get_num_threads(), numel // SHARE), 1)

    def work(number: int, owners: object) -> None:
        loop(number, shares, *arguments)

    threads = [Thread(target=work, args=(number, held)) for number in range(1, shares)]
    for each in threads:
        each.start()
    work(0, held)
    for each in threads:
        each.join()


def _loaded() -> ctypes.CDLL:
    compiler = [*(shlex.split(os.environ.get("CC", "")) or ["cc"]), *FLAGS]
    try:
        return _built([*compiler, OWN_PROCESSOR])
    except subprocess.CalledProcessError:
        return _built(compiler)


def _built(compiler: Sequence[str]) -> ctypes.CDLL:
    """The loops as this compiler, a command with its flags, makes them; of the cache where it has made them before."""
    name, folder = f"{SOURCE.stem}-{_key(compiler)}.so", _cache()
    kept = folder / name if folder else None
    if kept and _sound(kept):
        return _declared(ctypes.CDLL(str(kept)))
    with _alone(name), tempfile.TemporaryDirectory(prefix="wirebench-") as work:
        if kept and _sound(kept):  # another process has built them meanwhile
            return _declared(ctypes.CDLL(str(kept)))
        made = Path(work) / name
        _run([*compiler, "-o", str(made), str(SOURCE)])
        code = made.read_bytes()
        if kept:
            with contextlib.suppress(OSError):  # a home that cannot be written to: the next process builds them again
                kept.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(kept, code + sha256(code).digest())
        return _declared(ctypes.CDLL(str(kept if kept and _sound(kept) else made)))


@contextlib.contextmanager
def _alone(name: str) -> Iterator[None]:
    """Hold a lock of this host's: its ranks start together, and one compiler is enough for them.

    Without it where another process holds it for longer than a build may take, or it cannot be made.
    """
    path = Path(tempfile.gettempdir(), f"wirebench-{os.getuid()}-{name}.lock")
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, Timeout):
            held.enter_context(FileLock(path, timeout=BUILD_SECONDS))
        yield


def _cache() -> Path | None:
    """As scripts/build_horovod.sh has it; None for a user without a home, as in a container of any user's number."""
    named = os.environ.get("XDG_CACHE_HOME")
    home = os.path.expanduser("~")
    if not named and not os.path.isabs(home):
        return None
    return (Path(named) if named else Path(home, ".cache")) / "wirebench"


def _key(compiler: Sequence[str]) -> str:
    """A digest of the source, and of what the compiler says of its version and of this processor.

    Hosts of several kinds may share a home: none loads what another kind has built for its own processor.
    """
    about = _run([*compiler, "-###", "-E", "-x", "c", os.devnull]).stderr
    return sha256(SOURCE.read_bytes() + about.encode()).hexdigest()[:16]


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, capture_output=True, check=True, stdin=subprocess.DEVNULL, errors="replace", timeout=BUILD_SECONDS
    )


def _sound(path: Path) -> bool:
    """Whether the file ends with the digest of what stands before it: loading half a library ends the process."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    return sha256(content[:-32]).digest() == content[-32:]


def _declared(loaded: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in ARGUMENTS.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = arguments, None
    return loaded
