"""CIFAR-10: 50,000 training and 10,000 test images, 32 x 32, 10 classes.

Source: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; https://www.cs.toronto.edu/~kriz/cifar.html
"""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from wirebench.data.download import fetch
from wirebench.data.memory import InMemory
from wirebench.errors import UserError

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
TRAIN_FILES, TEST_FILES = tuple(f"data_batch_{i}.bin" for i in range(1, 6)), ("test_batch.bin",)
SIDE = 32
RECORDS, PIXEL_BYTES = 10_000, 3 * SIDE * SIDE
FILE_BYTES = RECORDS * (1 + PIXEL_BYTES)
# of the training images, as in most of the literature
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

Split = tuple[Tensor, Tensor]


class Cifar10(InMemory):
    """CIFAR-10 from the folder `root`, which holds (or is) cifar-10-batches-bin, or holds cifar-10-batches-py.

    Binary batches are checked for their size and for labels in 0..9. Python batches are pickles, which can run code, so
    only files with the official checksum are opened.

    augment   pad training images by an eighth of their side (4 pixels of 32), crop at random, mirror half of them
    size      side of the images in pixels; below 32 each pixel is the mean of a square of the original
    download  fetch the binary batches from the official address if root has none
    """

    def __init__(self, root: str, augment: bool = True, download: bool = False, size: Literal[8, 16, 32] = 32) -> None:
        if not root:
            raise UserError("data.root: 'cifar10' needs a folder that has, or with data.download=true gets, the images")
        train, test = _read(Path(root).expanduser(), download)
        train, test = _shrunk(train, size), _shrunk(test, size)
        super().__init__(train, test, 10, MEAN, STD, pad=size // 8 if augment else 0, flip=augment)


def _shrunk(split: Split, size: int) -> Split:
    """The images with `size` pixels a side, rounded to whole levels."""
    images, labels = split
    factor = SIDE // size
    if factor == 1:
        return split
    means = [functional.avg_pool2d(part.float(), factor).round_().to(torch.uint8) for part in images.split(RECORDS)]
    return torch.cat(means), labels


def _read(root: Path, download: bool) -> tuple[Split, Split]:
    if (root / TRAIN_FILES[0]).exists():
        return _read_binary(root)
    if not (root / BINARY).exists() and (root / PYTHON).exists():
        return _read_python(root)
    if not (root / BINARY).exists() and download:
        fetch(URL, MD5, root, BINARY)
    return _read_binary(root / BINARY)


def _read_binary(folder: Path) -> tuple[Split, Split]:
    return _read_files(folder, TRAIN_FILES), _read_files(folder, TEST_FILES)


def _read_files(folder: Path, names: tuple[str, ...]) -> Split:
    """Records of one label byte and 3,072 pixel bytes (red, green, blue planes), 10,000 in each file."""
    images = torch.empty(len(names) * RECORDS, PIXEL_BYTES, dtype=torch.uint8)
    labels = torch.empty(len(images), dtype=torch.int64)
    for place, name in enumerate(names):
        part = slice(place * RECORDS, (place + 1) * RECORDS)
        records = torch.from_numpy(_records(folder / name))
        labels[part], images[part] = records[:, 0], records[:, 1:]
    return images.view(-1, 3, SIDE, SIDE), labels


def _records(path: Path) -> np.ndarray:
    """The file's records, uint8 (10000, 3073); UserError if it is missing, of another size or has a label above 9."""
    try:
        size = path.stat().st_size
        if size != FILE_BYTES:
            raise UserError(f"data.root: {path} has {size} bytes, expected {FILE_BYTES}; fetch it again")
        records = np.fromfile(path, np.uint8).reshape(RECORDS, 1 + PIXEL_BYTES)
    except FileNotFoundError as error:
        raise UserError(f"data.root: there is no {path}; set data.download=true, or unpack {URL} there") from error
    except OSError as error:
        raise UserError(f"data.root: {path} cannot be read: {error.strerror}") from error
    wrong = np.flatnonzero(records[:, 0] > 9)
    if len(wrong):
        label = records[wrong[0], 0]
        raise UserError(
            f"data.root: {path}, record {wrong[0]} (from 0): label {label}, expected 0 to 9; fetch it again"
        )
    return records


def _read_python(root: Path) -> tuple[Split, Split]:
    from torchvision.datasets import CIFAR10  # takes seconds, and imports PyTorch's compiler: not for binary batches

    try:
        train, test = (CIFAR10(str(root), train=train, download=False) for train in (True, False))
    except RuntimeError as error:
        raise UserError(
            f"data.root: {root / PYTHON} is not complete or not the official one (MD5); other pickles are not opened; "
            f"use the binary version: {URL}"
        ) from error
    first, second = (
        (torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous(), torch.tensor(split.targets))
        for split in (train, test)
    )
    return first, second
