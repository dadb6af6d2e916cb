"""Which images a worker sees: its share of every global batch, and of the test split.

The order of an epoch is one permutation drawn from the seed and the epoch, the same on all ranks. Global batch b is a
slice of it, and rank r takes the r-th part of that slice. So shards are disjoint, and an epoch can be entered at any
step. The images of a step depend only on the global batch size: 4 workers of 32 and 8 of 16 train on the same images.

If the number of workers changes within an epoch, the new workers continue with the rest of the permutation, so no image
comes twice. The rest is seldom a multiple of the global batch, so a smaller last step takes the remainder. A remainder
of fewer than two images a worker, the least that batch normalisation accepts, is dropped.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from wirebench.data.base import Batch, Dataset, Key
from wirebench.errors import UserError
from wirebench.utils.rng import generator


class Takeover(NamedTuple):
    """Where a world took an epoch over from another one: before its step `step`, counted from the epoch's first, when
    `images` of the epoch's images had been seen.
    """

    epoch: int
    images: int
    step: int


class Shard:
    """One worker's share of a data set.

    rank, size       the worker's rank, and the world size
    batch_size       images per worker and training step
    eval_batch_size  images per worker and evaluation batch; 0: twice the training batch
    seed             train.seed: order and augmentation follow from it
    device           where batches are put

    steps_per_epoch  training steps per epoch; images that do not fill a global batch are dropped, different ones in
                     each epoch
    entry            how this world came into the epoch that it took over; None: it began with an epoch
    Raises UserError if the training split has less than one global batch.
    """

    def __init__(
        self,
        dataset: Dataset,
        rank: int,
        size: int,
        batch_size: int,
        eval_batch_size: int,
        seed: int,
        device: torch.device,
    ) -> None:
        assert 0 <= rank < size and batch_size > 0 and eval_batch_size >= 0
        self.dataset, self.rank, self.size, self.seed, self.device = dataset, rank, size, seed, device
        self.batch_size, self.eval_batch_size = batch_size, eval_batch_size or 2 * batch_size
        self.entry: Takeover | None = None
        self.steps_per_epoch = dataset.train_size // (batch_size * size)
        if self.steps_per_epoch == 0:
            raise UserError(
                f"data.batch_size: {batch_size} images x {size} workers are {batch_size * size} a step, "
                f"but the training split has only {dataset.train_size}; lower it or use fewer workers"
            )

    def train(self, epoch: int, first_step: int = 0) -> Iterator[Batch]:
        """This rank's training batches of `epoch` from step `first_step` on; see `Dataset.batches`."""
        assert 0 <= first_step <= self.steps_per_epoch
        key = Key(self.seed, epoch, self.rank)
        return self.dataset.batches(self._train_indices(epoch, first_step), train=True, key=key, device=self.device)

    def take_over(self, epoch: int, images: int) -> int:
        """Go on in `epoch`, of which another world has seen `images` images; the step to go on with, of all steps.

        The epoch ends after as many steps as this world's epochs have, so it is entered late enough for that. Where the
        rest, beyond full global batches, is at least two images a worker, it makes one more, smaller step. Where no
        step is left the result is the next epoch's first, and this one is over.
        """
        self.entry, batch = None, self.batch_size * self.size
        if images:
            left = self.dataset.train_size - images
            smaller = bool(images % batch) and left % batch >= 2 * self.size
            steps = min(left // batch + smaller, self.steps_per_epoch)
            self.entry = Takeover(epoch, images, self.steps_per_epoch - steps)
        return epoch * self.steps_per_epoch + (self.entry.step if self.entry else 0)

    def worker_steps(self, epoch: int, steps: int) -> float:
        """Worker steps in the first `steps` of `epoch`: summed over workers, including earlier world sizes."""
        if self.entry is None or self.entry.epoch != epoch:
            return steps * self.size
        return self.entry.images / self.batch_size + (steps - self.entry.step) * self.size

    @property
    def test_batches(self) -> int:
        """How many batches `test` gives."""
        mine = len(range(self.rank, self.dataset.test_size, self.size))
        return -(-mine // self.eval_batch_size)

    def test(self) -> Iterator[Batch]:
        """This rank's test batches: over all ranks every image exactly once; shares differ by at most one image."""
        mine = torch.arange(self.dataset.test_size)[self.rank :: self.size]
        parts = iter(mine.split(self.eval_batch_size)) if len(mine) else iter(())
        key = Key(self.seed, 0, self.rank)
        return self.dataset.batches(parts, train=False, key=key, device=self.device)

    def _train_indices(self, epoch: int, first_step: int) -> Iterator[Tensor]:
        order = torch.randperm(self.dataset.train_size, generator=generator("order", self.seed, epoch))
        for step in range(first_step, self.steps_per_epoch):
            yield self._mine(order[images_seen(self.entry, epoch, step, self.size * self.batch_size) :])

    def _mine(self, left: Tensor) -> Tensor:
        """This rank's part of the next step, of the images that are left of an epoch."""
        if len(left) >= self.batch_size * self.size:
            return left[self.rank * self.batch_size :][: self.batch_size]
        share, more = divmod(len(left), self.size)
        start = self.rank * share + min(self.rank, more)
        return left[start : start + share + (self.rank < more)]


def images_seen(entry: Takeover | None, epoch: int, steps: int, batch: int) -> int:
    """Images of `epoch` that were seen when a world of `batch` images a step had made `steps` of its steps."""
    if entry is None or entry.epoch != epoch:
        return steps * batch
    return entry.images + (steps - entry.step) * batch
