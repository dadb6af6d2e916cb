"""Files that are whole or absent: what is read after a crash was written completely."""

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content`, on disk when this returns; a reader sees the old file or the new one, never a part.

    Raises OSError, and leaves the old file, where the folder cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        error.filename = str(path)  # the one that whoever reads the message knows
        raise
