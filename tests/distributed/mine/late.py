"""The blobs of a slow disk."""

import time
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from tests.distributed.mine.blobs import Blobs
from wirebench.data.base import Batch, Key


class Late(Blobs):
    """Each training batch takes `pause_ms` to load."""

    def __init__(self, root: str, pause_ms: float = 50.0) -> None:
        super().__init__(root)
        self.pause_seconds = pause_ms / 1000

    def batches(
        self, index_batches: Iterable[Tensor], *, train: bool, key: Key, device: torch.device
    ) -> Iterator[Batch]:
        """The blobs' own, late."""
        for batch in super().batches(index_batches, train=train, key=key, device=device):
            time.sleep(self.pause_seconds if train else 0.0)
            yield batch
