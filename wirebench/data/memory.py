"""Small image sets held whole in memory: cropped, flipped and normalised a batch at a time on the device.

The set moves to the device once, as uint8. A batch costs one gather for its images, one for crop and flip together,
and the normalisation; nothing waits for a GPU.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from wirebench.data.base import Batch, Key, normalise, per_channel
from wirebench.utils.rng import generator


class InMemory:
    """A `Dataset` made of tensors.

    train, test  (images uint8 (N, C, H, W), labels int64 (N,)), on the CPU
    mean, std    per channel, in units of [0, 1] pixels
    pad          training images are padded by this many black pixels and cropped back at a random place; 0: off
    flip         mirror half of the training images
    """

    def __init__(
        self,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        num_classes: int,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        pad: int = 0,
        flip: bool = False,
    ) -> None:
        self.num_classes, self.pad, self.flip = num_classes, pad, flip
        channels, height, width = train[0].shape[1:]
        self.image_shape = (channels, height, width)
        self.train_size, self.test_size = len(train[0]), len(test[0])
        self._splits = {True: train, False: test}
        self._mean, self._std = mean, std
        self._on_device: dict[tuple[bool, torch.device], tuple[Tensor, Tensor]] = {}

    def batches(
        self, index_batches: Iterable[Tensor], *, train: bool, key: Key, device: torch.device
    ) -> Iterator[Batch]:
        """See `Dataset.batches`; the tensors are the caller's to change."""
        images, labels = self._move(train, device)
        mean, std = per_channel(self._mean, device), per_channel(self._std, device)
        moves = draw_moves(self.train_size, self.pad, self.flip, key, device) if train else None
        for index in index_batches:
            index = index.to(device, non_blocking=True)
            chosen = images.index_select(0, index)
            if moves is not None:
                chosen = crop_and_flip(chosen, self.pad, moves.index_select(0, index))
            yield normalise(chosen, mean, std), labels.index_select(0, index)

    def labels(self, train: bool) -> Tensor:
        """All labels of a split, int64, in order."""
        return self._splits[train][1]

    def _move(self, train: bool, device: torch.device) -> tuple[Tensor, Tensor]:
        """The split on the device, copied there the first time."""
        place = train, device
        if place not in self._on_device:
            images, labels = self._splits[train]
            self._on_device[place] = images.to(device), labels.to(device)
        return self._on_device[place]


def draw_moves(count: int, pad: int, flip: bool, key: Key, device: torch.device) -> Tensor | None:
    """Augmentation of every image of an epoch: int64 (count, 3) of (top, left, mirrored); None without pad and flip.

    top and left lie in [0, 2 * pad] (pad: not shifted), mirrored is 0 or 1. All are sampled at once, on the CPU, so an
    image's row does not depend on the step, rank or device that uses it.
    """
    if not pad and not flip:
        return None
    random = generator("augment", key.seed, key.epoch)
    corners = torch.randint(0, 2 * pad + 1, (count, 2), generator=random)
    mirrored = torch.randint(0, 2, (count, 1), generator=random)
    return torch.cat([corners, mirrored if flip else torch.zeros_like(mirrored)], dim=1).to(device)


def crop_and_flip(images: Tensor, pad: int, moves: Tensor) -> Tensor:
    """Pad with black, cut each image's own window out, mirror some of them.

    images uint8 (N, C, H, W); moves int64 (N, 3) as from `draw_moves`. One gather does crop and mirror together.
    """
    count, channels, height, width = images.shape
    padded = functional.pad(images, (pad, pad, pad, pad))
    top, left, mirrored = moves[:, :, None].unbind(1)
    row, column = torch.arange(height, device=images.device), torch.arange(width, device=images.device)
    rows = top + row
    columns = left + torch.where(mirrored == 1, width - 1 - column, column)
    places = rows[:, :, None] * (width + 2 * pad) + columns[:, None, :]
    places = places.view(count, 1, height * width).expand(-1, channels, -1)
    return padded.flatten(2).gather(2, places).view(images.shape)
