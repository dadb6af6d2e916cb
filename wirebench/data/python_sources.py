"""The Python standard library's own sources, byte by byte: a text that every machine has, with nothing to download.

It is the running interpreter's, so it differs between versions of Python: compare numbers of the same one. With the
installed packages' sources it also differs between their versions. Ranks whose texts differ are refused before the
first step, and a record has the text's digest.
"""

import sysconfig
import zlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from wirebench.data.base import at_least, no_root
from wirebench.data.sequences import ByteSequences
from wirebench.errors import UserError

LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "ensurepip", "__pycache__"}
"""Folders: tests, and what distributions leave out or add."""
TEST_SHARE = 20
"""About one file in 20 belongs to the test split, by a hash of its name; with packages one more to the validation
split."""
PACKAGES = "site-packages"
HELD_OUT = {"test": 0, "validation": 1}
"""By split the remainder of a name's hash."""


class PythonSources(ByteSequences):
    """All .py files of the standard library but tests, one after the other.

    Their order and their split are by the CRC-32 of their paths: the same everywhere, and the beginning of the text is
    a fair sample of it.

    length       bytes of a sequence
    train_bytes  how much of the training text is used, from its beginning; 0: all
    packages     the sources of all installed packages, too: some twenty times as much text
    tested       the split that losses are measured on: test, or validation, on which settings are chosen. Without
                 packages there is no validation split
    test_bytes   how much of that split is used, from its beginning; 0: all
    parts        into which the training text is cut; an epoch has one of them, the next epoch the next
    """

    def __init__(
        self,
        root: str,
        length: int = 128,
        train_bytes: int = 0,
        packages: bool = False,
        tested: str = "test",
        test_bytes: int = 0,
        parts: int = 1,
    ) -> None:
        no_root("python_sources", root)
        at_least("test_bytes", test_bytes, 0)
        if tested not in HELD_OUT:
            raise UserError(f"data.tested: is one of {', '.join(HELD_OUT)}, got {tested!r}")
        if tested != "test" and not packages:
            raise UserError(f"data.tested: {tested!r} needs data.packages=true; the standard library has no such split")
        files = _sources(packages)
        kept = sorted(files, key=_place)
        held_out = [HELD_OUT["test"], *([HELD_OUT["validation"]] if packages else [])]
        shares = {name: _place(name)[0] % TEST_SHARE for name in kept}
        split = {
            True: [files[name] for name in kept if shares[name] not in held_out],
            False: [files[name] for name in kept if shares[name] == HELD_OUT[tested]],
        }
        if not all(split.values()):
            folder = sysconfig.get_paths()["stdlib"]
            raise UserError(f"data.name: {folder} has no sources; python_sources needs the standard library as files")
        test = _read(split[False], test_bytes)
        if test_bytes > len(test):
            raise UserError(f"data.test_bytes: the {tested} split has {len(test)}, got {test_bytes}")
        super().__init__(_read(split[True], train_bytes), test, length, train_bytes, parts)


def _sources(packages: bool) -> dict[str, Path]:
    """The files by the names that decide their order and their split; Wirebench's own are left out."""
    paths = sysconfig.get_paths()
    folder = Path(paths["stdlib"])
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.py")}
    kept = {name: path for name, path in found.items() if not LEFT_OUT & set(Path(name).parts[:-1])}
    if packages:
        for path in Path(paths["purelib"]).rglob("*.py"):
            name = path.relative_to(paths["purelib"])
            if not LEFT_OUT & set(name.parts[:-1]) and name.parts[0] != "wirebench":
                kept[f"{PACKAGES}/{name.as_posix()}"] = path
    return kept


def _place(name: str) -> tuple[int, str]:
    return zlib.crc32(name.encode()), name


def _read(files: Sequence[Path], most: int) -> Tensor:
    """The files' bytes, one after the other; `most`: read no more bytes than this; 0: all."""
    text = bytearray()
    try:
        for path in files:
            text += path.read_bytes()
            if most and len(text) >= most:
                break
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from error
    return torch.frombuffer(text[: most or None], dtype=torch.uint8)
