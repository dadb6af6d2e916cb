"""The Python standard library's own sources, byte by byte: a text that every machine has, with nothing to download.

It is the running interpreter's, so it differs between versions of Python: compare numbers of the same one. Ranks whose
texts differ are refused before the first step.
"""

import sysconfig
import zlib
from pathlib import Path

import torch
from torch import Tensor

from wirebench.data.base import no_root
from wirebench.data.sequences import ByteSequences
from wirebench.errors import UserError

LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "ensurepip", "__pycache__"}
"""Folders: tests, and what distributions leave out or add."""
TEST_SHARE = 20
"""About one file in 20 belongs to the test split, by a hash of its name."""


class PythonSources(ByteSequences):
    """All .py files of the standard library but tests, one after the other.

    Their order and their split are by the CRC-32 of their paths: the same everywhere, and the beginning of the text is
    a fair sample of it.

    length       bytes of a sequence
    train_bytes  how much of the training text is used, from its beginning; 0: all
    """

    def __init__(self, root: str, length: int = 128, train_bytes: int = 0) -> None:
        no_root("python_sources", root)
        folder = Path(sysconfig.get_paths()["stdlib"])
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.py")]
        kept = sorted((name for name in names if not LEFT_OUT & set(Path(name).parts[:-1])), key=_place)
        split = {part: [name for name in kept if (_place(name)[0] % TEST_SHARE != 0) == part] for part in (True, False)}
        if not all(split.values()):
            raise UserError(f"data.name: {folder} has no sources; python_sources needs the standard library as files")
        super().__init__(_read(folder, split[True]), _read(folder, split[False]), length, train_bytes)


def _place(name: str) -> tuple[int, str]:
    return zlib.crc32(name.encode()), name


def _read(folder: Path, names: list[str]) -> Tensor:
    try:
        text = bytearray().join((folder / name).read_bytes() for name in names)
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from error
    return torch.frombuffer(text, dtype=torch.uint8)
