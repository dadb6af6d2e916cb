"""Stand-ins for the real data, in the right layouts."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from wirebench.data.cifar10 import FILE_BYTES, RECORDS, TEST_FILES, TRAIN_FILES
from wirebench.data.memory import InMemory

CPU = torch.device("cpu")


def small_set(train_size: int = 40, test_size: int = 11, pad: int = 0, flip: bool = False) -> InMemory:
    """4x4 images whose label, and every pixel where nothing is cut, is the image's number."""

    def split(size: int) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.arange(size)
        return numbers.to(torch.uint8)[:, None, None, None].expand(size, 3, 4, 4).contiguous(), numbers

    return InMemory(split(train_size), split(test_size), train_size, (0.0,) * 3, (1 / 255,) * 3, pad, flip)


def write_cifar10(folder: Path) -> np.ndarray:
    """Six full-size batch files of random records; returns the training records, uint8 (50000, 3073)."""
    folder.mkdir(parents=True)
    records = np.random.default_rng(0).integers(0, 256, 6 * FILE_BYTES, np.uint8).reshape(6 * RECORDS, -1)
    records[:, 0] %= 10
    for place, name in enumerate(TRAIN_FILES + TEST_FILES):
        records[place * RECORDS : (place + 1) * RECORDS].tofile(folder / name)
    return records[: 5 * RECORDS]


def write_images(root: Path, train: int = 6, val: int = 3, classes: tuple[str, ...] = ("cat", "dog")) -> None:
    """JPEG noise of various sizes, grey and colour, in ImageNet's layout; `train` and `val` images per class."""
    random = np.random.default_rng(0)
    for part, count in (("train", train), ("val", val)):
        for name in classes:
            folder = root / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                height, width = random.integers(20, 60, 2)
                shape = (height, width) if number % 3 == 0 else (height, width, 3)
                Image.fromarray(random.integers(0, 256, shape, np.uint8)).save(folder / f"{number}.jpg")
