"""Files that are whole or absent: what is read after a crash was written completely.

Only a regular file, or a name that is new, is ever replaced or removed. A symbolic link stays, and stands for what it
points to; a device or a pipe is written to.
"""

import contextlib
import errno
import multiprocessing.util
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from wirebench.errors import Unwritable

LONGEST_SOCKET_FOLDER = 75
"""Bytes of TMPDIR: below it multiprocessing makes /pymp-12345678/listener-12345678."""
HELD_OPEN = ("/dev/std", "/dev/fd/", "/proc/")
"""Names of open descriptors of a process: a write must reach the open file, not a new one in its place."""


PIPE_SECONDS = 5.0
"""How long the reader of a pipe may take to open it."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content`, on disk when this returns; a reader sees the old file or the new one, never a part.

    Raises OSError, and leaves the old file, where the folder cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if is_stream(path):
            with open_stream(path) as stream:
                stream.write(data)
        else:
            _replace(target_of(path), data)
    except OSError as error:
        error.filename = str(path)  # the one that whoever reads the message knows
        raise


@contextlib.contextmanager
def keeping(path: Path, what: str = "cannot be written") -> Iterator[None]:
    """Around writing `path`, which a run cannot do without: an OSError becomes Unwritable, one line."""
    try:
        yield
    except OSError as error:
        raise Unwritable(f"{path}: {what}: {error.strerror or error}") from error


def is_stream(path: Path) -> bool:
    """Whether `path` must be written in place, not replaced: a device, a pipe, or an open file of a process."""
    return path.exists() and not path.is_dir() and (_is_held(path) or not path.is_file())


def readable(path: Path) -> Path:
    """The path, if reading it ends: a regular file, or a descriptor that this process got open (`<(command)`).

    Raises OSError for a named pipe, a device and a socket, whose reading might not end. A missing file is not checked.
    """
    if not _is_held(path) and is_stream(path):
        raise OSError(errno.EINVAL, f"it is {_kind(path)}, not a file", str(path))
    return path


def open_stream(path: Path) -> BinaryIO:
    """A device or a pipe, to be written to. Raises OSError if no reader opens the pipe within PIPE_SECONDS."""
    deadline = time.monotonic() + PIPE_SECONDS
    while True:
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO or not path.is_fifo():
                raise
            if time.monotonic() > deadline:
                raise OSError(errno.ENXIO, "no process reads this pipe", str(path)) from error
            time.sleep(0.02)
        else:
            os.set_blocking(descriptor, True)
            return os.fdopen(descriptor, "wb")


def check_output(path: Path) -> None:
    """Raise OSError, before a long job, where `path` cannot become a file or is a device that takes nothing.

    A pipe is not opened: its reader would see its end.
    """
    if path.is_dir():
        raise OSError(errno.EISDIR, "is a folder", str(path))
    if is_stream(path):
        if not path.is_fifo() and not _is_held(path):
            try:
                with open_stream(path) as stream:
                    os.write(stream.fileno(), b"")
            except OSError as error:
                error.filename = str(path)
                raise
    else:
        # Tried, not asked: os.access lets root write everywhere, also where the file system takes no files.
        try:
            with tempfile.TemporaryFile(dir=target_of(path).parent):
                pass
        except OSError as error:
            raise OSError(error.errno, f"its folder cannot be written to: {error.strerror}", str(path)) from error


def _is_held(path: Path) -> bool:
    return os.path.abspath(path).startswith(HELD_OPEN)


def _kind(path: Path) -> str:
    return "a pipe" if path.is_fifo() else "a socket" if path.is_socket() else "a device"


def shorten_socket_folder() -> None:
    """Let multiprocessing make its sockets in /tmp where TMPDIR is too long: the kernel takes a path of 107 bytes.

    Call it before the first fork server, queue or loader with workers; their processes inherit the folder.
    """
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) > LONGEST_SOCKET_FOLDER:
        tempfile.tempdir = "/tmp"
        try:
            multiprocessing.util.get_temp_dir()  # kept by multiprocessing, which removes it at the end
        finally:
            tempfile.tempdir = usual


def target_of(path: Path) -> Path:
    """The file that `path` leads to, through symbolic links; it need not exist."""
    return Path(os.path.realpath(path))


def sync(folder: Path) -> None:
    """Bring the names in a folder to the disk, where its file system can: a rename there outlasts a loss of power."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: Path) -> None:
    """Remove the regular file that `path` leads to, if there is one."""
    if not is_stream(path):
        target_of(path).unlink(missing_ok=True)


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
