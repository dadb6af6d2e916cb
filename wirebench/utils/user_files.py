"""A user's files: what cannot be read or written is a UserError, one line that names the file."""

import gzip
import zlib
from pathlib import Path
from typing import Any

from wirebench.errors import UserError
from wirebench.utils.files import readable, write_atomically
from wirebench.utils.parsing import json_of, toml_of

GZIP = b"\x1f\x8b"
"""How a packed file begins."""


def read(path: Path, where: str = "", hint: str = "") -> str:
    """The file's text, unpacked. `where`, `hint`: begin and end of the error line."""
    try:
        text = unpacked(path, where, hint).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{where}{path}: not a text file") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def unpacked(path: Path, where: str = "", hint: str = "") -> bytes:
    """What a file holds, or what gzip packed into it."""
    try:
        content = readable(path).read_bytes()
        return gzip.decompress(content) if content.startswith(GZIP) else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{where}{path}: is a damaged gzip file: {error}") from error
    except OSError as error:
        raise UserError(f"{where}{path}: cannot be read: {error.strerror or error}{hint}") from error


def read_toml(path: Path, hint: str = "") -> dict[str, Any]:
    """The tables of a TOML file; UserError where it is none."""
    text = read(path, hint=hint)
    try:
        return toml_of(text)
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        raise UserError(f"{path}: not valid TOML: {error}") from error


def read_json(path: Path) -> Any:
    """What a file's JSON says; UserError where it is none."""
    text = read(path)
    try:
        return json_of(text)
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error


def write(path: Path, content: str | bytes, where: str = "") -> None:
    """Write the file in one piece, and make its folder; .gz in its name packs it. `where`: begin of the error line."""
    try:
        if path.suffix == ".gz":
            content = gzip.compress(content.encode() if isinstance(content, str) else content, mtime=0)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
    except OSError as error:
        reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise UserError(f"{where}{path}: cannot be written: {reason}") from error
