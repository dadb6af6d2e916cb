"""Text files of one's own, byte by byte."""

import zlib
from pathlib import Path

import torch
from torch import Tensor

from wirebench.data.sequences import ByteSequences
from wirebench.errors import UserError

BLOCK, TEST_SHARE = 2**14, 20
"""Files are cut into blocks of 16 KiB; about one block in 20 is for testing, so one long file has a test split, too."""


class Text(ByteSequences):
    """All files below data.root whose names end in `suffix`, in the order of their names, one after the other.

    A block belongs to the test split by the CRC-32 of its file's name and its number, so that the split is the same for
    every run and every rank.

    length       bytes of a sequence
    train_bytes  how much of the training text is used, from its beginning; 0: all
    suffix       of the files' names; empty: all files
    """

    def __init__(self, root: str, length: int = 128, train_bytes: int = 0, suffix: str = ".txt") -> None:
        folder = Path(root)
        if not root or not folder.is_dir():
            raise UserError(f"data.root: 'text' needs a folder with files that end in {suffix!r}, got {root!r}")
        files = sorted(path for path in folder.rglob(f"*{suffix}") if path.is_file())
        if not files:
            raise UserError(f"data.root: {root} has no file that ends in {suffix!r} (data.suffix)")
        texts = {True: bytearray(), False: bytearray()}
        for path in files:
            _add(path, path.relative_to(folder).as_posix(), texts)
        train, test = (_as_tensor(texts[part]) for part in (True, False))
        if not len(test):
            raise UserError(
                f"data.root: {root} has {len(train):,} bytes of text, of which none is for testing: that is one block "
                f"of {BLOCK:,} bytes in {TEST_SHARE}, by chance; give it more text"
            )
        super().__init__(train, test, length, train_bytes)


def _add(path: Path, name: str, texts: dict[bool, bytearray]) -> None:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    for number in range(0, len(content), BLOCK):
        mine = zlib.crc32(f"{name} {number // BLOCK}".encode()) % TEST_SHARE != 0
        texts[mine] += content[number : number + BLOCK]


def _as_tensor(text: bytearray) -> Tensor:
    return torch.frombuffer(text, dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)
