"""What a data set is: samples by index, mostly images, the same for every reader that names the same key.

Which images a worker gets is the business of `shard.Shard`; a data set only turns indices into tensors.
"""

import math
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from wirebench.errors import UserError
from wirebench.utils.rng import generator

Batch = tuple[Tensor, Tensor]


class Key(NamedTuple):
    """What the randomness of augmentation may depend on, beside the image's own index.

    Augmentation depends on the seed, the epoch and the image, and not on the rank, the step or the batch. So a resumed
    epoch repeats the unbroken one bit for bit, and P workers with B images each see what one worker with P * B sees.
    """

    seed: int
    epoch: int
    rank: int


class Dataset(Protocol):
    """A training and a test split of images with one label each.

    A set's constructor takes `root: str` (the folder that data.root names, "" where the user named none); its other
    arguments are its options.

    num_classes  labels lie in [0, num_classes)
    image_shape  (channels, height, width) of the images that `batches` yields; () for samples that are no images
    train_size   images of the training split
    test_size    images of the test split

    A set whose samples are sequences has `length`, the labels of one, and, where these are pieces of a text,
    `bytes_per_label`, how many bytes of it one stands for on average. Without them a sample has one label.

    A set that has its labels at hand may have `labels(train: bool) -> Tensor`, all of a split's, in order. Ranks
    compare them before the first step (`fingerprint`); of another set some samples are read for that.
    """

    num_classes: int
    train_size: int
    test_size: int

    @property
    def image_shape(self) -> tuple[int, ...]:
        """See above."""
        ...

    def batches(
        self, index_batches: Iterable[Tensor], *, train: bool, key: Key, device: torch.device
    ) -> Iterator[Batch]:
        """Yield (images, labels) for each batch of indices, in order, on `device`.

        index_batches  int64 tensors of shape (N,) on the CPU, N >= 1, with indices into the split; N may vary
        train          the training split, augmented; else the test split, not augmented

        images are float32 (N, *image_shape), normalised; labels int64 (N,). Samples that are no images are a tensor
        (N, ...) of any type, and their labels may be of shape (N, ...), such as a token's successor. Samples depend on
        the index and on the key, never on how the indices are batched or on how many processes decode. The caller may
        change the tensors only if the set's documentation permits it. UserError names a file that cannot be read.
        """


def unit_of(dataset: Dataset) -> Literal["images", "samples"]:
    """The unit in which the set's throughput is counted."""
    return "images" if dataset.image_shape else "samples"


def labels_of(dataset: Dataset) -> int:
    """Labels of one sample: 1, or the tokens of a sequence."""
    return int(getattr(dataset, "length", 1))


def text_measures(dataset: Dataset, loss: float | None) -> dict[str, float]:
    """What a mean cross entropy in nats says of a model of text: {} for other data, or without a loss.

    perplexity     e to the loss
    bits_per_byte  the loss in bits over the bytes of a label, so that models with other tokens can be compared
    """
    size = getattr(dataset, "bytes_per_label", None)
    if size is None or loss is None:
        return {}
    # A loss of some hundred nats has no number of perplexity.
    return {"perplexity": math.exp(min(loss, 700.0)), "bits_per_byte": loss / math.log(2) / size}


def fingerprint(dataset: Dataset, count: int = 64) -> dict[str, Any]:
    """What must be the same on all ranks, by its name: sizes and a CRC-32 of the labels.

    count  samples of a split that are read where the set does not name its labels; they are spread over the split
    """
    sizes = {True: dataset.train_size, False: dataset.test_size}
    found: dict[str, Any] = {
        "number of classes": dataset.num_classes,
        "training samples": sizes[True],
        "test samples": sizes[False],
    }
    for train, size in sizes.items():
        if size:
            name = "training" if train else "test"
            found[f"checksum of the {name} labels"] = f"{_checksum(_labels(dataset, train, min(count, size))):08x}"
    return found


def _labels(dataset: Dataset, train: bool, count: int) -> Tensor:
    told = getattr(dataset, "labels", None)
    if callable(told):
        return torch.as_tensor(told(train))
    index = torch.linspace(0, (dataset.train_size if train else dataset.test_size) - 1, count).long()
    [(_, labels)] = dataset.batches([index], train=train, key=Key(0, 0, 0), device=torch.device("cpu"))
    return labels


def _checksum(labels: Tensor) -> int:
    return zlib.crc32(labels.to("cpu", torch.int64).contiguous().numpy().data)


def probe_batch(dataset: Dataset, count: int, device: torch.device) -> Batch:
    """A batch to try a model on: noise with labels 0 for images, the first samples of the training split else."""
    if dataset.image_shape:
        images = torch.randn(count, *dataset.image_shape, generator=generator("probe batch"))
        return images.to(device), torch.zeros(count, dtype=torch.int64, device=device)
    index = torch.arange(count) % dataset.train_size
    return next(iter(dataset.batches([index], train=True, key=Key(0, 0, 0), device=device)))


def normalise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(images / 255 - mean) / std as float32.

    images uint8 (N, C, H, W); mean and std float32 (1, C, 1, 1) on the same device, in units of [0, 1] pixels.
    """
    return images.to(torch.float32).mul_(1 / (255 * std)).sub_(mean / std)


def per_channel(values: Iterable[float], device: torch.device) -> Tensor:
    """A (1, C, 1, 1) float32 tensor that broadcasts over images."""
    return torch.tensor(list(values), dtype=torch.float32, device=device)[None, :, None, None]


def no_root(name: str, root: str) -> None:
    """Raise UserError if the user named a folder for the set `name`, which reads none."""
    if root:
        raise UserError(f"data.root: {name!r} takes none, got {root!r}")


def at_least(option: str, value: int, least: int) -> None:
    """Raise UserError unless data.`option` is `least` or more."""
    if value < least:
        raise UserError(f"data.{option}: needs at least {least}, got {value}")
