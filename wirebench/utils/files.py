"""Files that are whole or absent: what is read after a crash was written completely.

Only a regular file, or a name that is new, is ever replaced or removed. A symbolic link stays, and stands for what it
points to; a device or a pipe is written to.
"""

import contextlib
import multiprocessing.util
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from wirebench.errors import Unwritable

LONGEST_SOCKET_FOLDER = 75
"""Bytes of TMPDIR: below it multiprocessing makes /pymp-12345678/listener-12345678."""
HELD_OPEN = ("/dev/std", "/dev/fd/", "/proc/")
"""Names of what a process holds open: whoever opened it goes on with that file, not with one that took its place."""


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content`, on disk when this returns; a reader sees the old file or the new one, never a part.

    Raises OSError, and leaves the old file, where the folder cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    try:
        if is_stream(path):
            with path.open("ab") as stream:
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
    """Whether `path` leads to something that is written to as it is: a device, a pipe, an open file of a process."""
    held = os.path.abspath(path).startswith(HELD_OPEN)
    return path.exists() and not path.is_dir() and (held or not path.is_file())


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
