"""Random images that cost nothing to load: for throughput, where the input pipeline must not be what is measured."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from wirebench.data.base import Batch, Key, at_least, no_root
from wirebench.utils.rng import generator


class Synthetic:
    """One random batch per rank and split, drawn at the start of an epoch and yielded again at every step.

    Its images (standard normal) and labels depend on the seed and the rank, and on nothing else, so workers have
    different gradients and a repeated or resumed run has the same ones. Of the indices only their number counts: a
    shorter batch is drawn by itself. The tensors yielded are the same objects each time and must not be changed.

    image_size   height and width in pixels
    channels     of an image
    num_classes  labels lie in [0, num_classes)
    train_size   images that count as one epoch (ImageNet has 1,281,167)
    test_size    images that count as the test split
    """

    def __init__(
        self,
        root: str,
        image_size: int = 224,
        channels: int = 3,
        num_classes: int = 1000,
        train_size: int = 12_800,
        test_size: int = 256,
    ) -> None:
        no_root("synthetic", root)
        at_least("image_size", image_size, 1)
        at_least("channels", channels, 1)
        at_least("num_classes", num_classes, 2)
        at_least("train_size", train_size, 1)
        at_least("test_size", test_size, 0)
        self.image_shape = (channels, image_size, image_size)
        self.num_classes, self.train_size, self.test_size = num_classes, train_size, test_size

    def labels(self, train: bool) -> Tensor:
        """None: they are drawn from the seed."""
        return torch.empty(0, dtype=torch.int64)

    def batches(
        self, index_batches: Iterable[Tensor], *, train: bool, key: Key, device: torch.device
    ) -> Iterator[Batch]:
        """See `Dataset.batches`; only the length of each index batch counts."""
        drawn: dict[int, Batch] = {}
        for index in index_batches:
            count = len(index)
            if count not in drawn:
                drawn[count] = self._draw(count, train, key, device)
            yield drawn[count]

    def _draw(self, count: int, train: bool, key: Key, device: torch.device) -> Batch:
        random = generator("synthetic", key.seed, key.rank, int(train), count, device=device)
        images = torch.randn(count, *self.image_shape, generator=random, device=device)
        labels = torch.randint(0, self.num_classes, (count,), generator=random, device=device)
        return images, labels
