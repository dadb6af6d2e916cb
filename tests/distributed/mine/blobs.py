"""A small image set that needs nothing but torch: one bright quarter per class, under noise."""

import torch
from torch import Tensor

from wirebench.data.memory import InMemory


class Blobs(InMemory):
    """`train_size` training and 40 test images of 4 classes, 3x8x8, shifted by up to one pixel.

    `root` may be anything: nothing is read.
    """

    def __init__(self, root: str, train_size: int = 96) -> None:
        train, test = _draw(train_size, 1), _draw(40, 2)
        super().__init__(train, test, 4, (0.5,) * 3, (0.25,) * 3, pad=1)


def _draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    images = torch.randint(0, 128, (count, 3, 8, 8), generator=random, dtype=torch.uint8)
    for image, label in zip(images, labels.tolist(), strict=True):
        row, column = 4 * (label // 2), 4 * (label % 2)
        image[:, row : row + 4, column : column + 4] += 96
    return images, labels
