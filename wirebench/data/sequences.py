"""Sequences of bytes out of a long text, each with its bytes' successors as labels."""

import functools
import hashlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from wirebench.data.base import Batch, Key, at_least
from wirebench.errors import UserError
from wirebench.utils.rng import generator

BYTES = 256
MOST_ON_DEVICE = 2**30
"""Bytes of a text that moves to the device as a whole, once for each process."""


class ByteSequences:
    """A training and a test text, uint8 of one dimension each, cut into sequences of `length` bytes.

    Sample i begins at byte i * length. In training all samples are shifted by an offset below `length`, drawn from the
    seed and the epoch, so that the cuts differ between epochs. Samples and labels are int64 (N, length); labels are the
    next bytes. The training text is cut into `parts` parts, and each epoch has the next one: a run with
    as many epochs reads all of it once, and is evaluated on the way. Texts of up to `MOST_ON_DEVICE` bytes move to the
    device once, so that no batch waits for a copy. Longer texts are copied batch by batch.
    """

    num_classes = BYTES
    bytes_per_label = 1.0
    """So a loss in nats divided by log 2 is bits per byte."""

    def __init__(self, train: Tensor, test: Tensor, length: int, train_bytes: int, parts: int = 1) -> None:
        at_least("length", length, 1)
        at_least("parts", parts, 1)
        at_least("train_bytes", train_bytes, 0)
        if train_bytes > len(train):
            raise UserError(f"data.train_bytes: the training split has {len(train)}, got {train_bytes}")
        train = train[: train_bytes or None]
        share = train[: len(train) // parts]
        for name, text in ((f"training split{' of a part' if parts > 1 else ''}", share), ("test split", test)):
            if len(text) < 2 * length:
                raise UserError(f"data.length: the {name} has {len(text)} bytes, too few for sequences of {length}")
        self.length, self._texts, self._parts = length, {True: train, False: test}, parts
        self._on_device: dict[tuple[bool, torch.device], Tensor] = {}
        # A shift and the last label lie within the text.
        self.train_size, self.test_size = len(share) // length - 1, (len(test) - 1) // length

    @functools.cached_property
    def digest(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the training text that is used and the test text."""
        both = hashlib.sha256()
        for train in (True, False):
            both.update(self._texts[train].numpy().data)
        return both.hexdigest()[:16]

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(): they are no images."""
        return ()

    def batches(
        self, index_batches: Iterable[Tensor], *, train: bool, key: Key, device: torch.device
    ) -> Iterator[Batch]:
        """See `Dataset.batches`."""
        shift = 0
        if train:
            drawn = torch.randint(self.length, (), generator=generator("byte sequences", key.seed, key.epoch))
            shift = int(drawn) + key.epoch % self._parts * (len(self._texts[True]) // self._parts)
        text = self._move(train, device)
        places = shift + torch.arange(self.length + 1, device=text.device)
        for index in index_batches:
            begins = self.length * index.to(text.device, non_blocking=True)
            rows = text[begins[:, None] + places].to(device).to(torch.int64)
            yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def _move(self, train: bool, device: torch.device) -> Tensor:
        """The split on the device, copied there the first time, unless it is too long."""
        if self._texts[train].numel() > MOST_ON_DEVICE:
            return self._texts[train]
        place = train, device
        if place not in self._on_device:
            self._on_device[place] = self._texts[train].to(device)
        return self._on_device[place]
