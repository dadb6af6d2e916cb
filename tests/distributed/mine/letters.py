"""A user's own data and models, which know nothing of the suite: tokens and their successors."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

TOKENS, LENGTH = 11, 6


class Counting:
    """Sequences that count up, modulo 11."""

    num_classes, image_shape, train_size, test_size = TOKENS, (), 64, 16

    def __init__(self, root: str) -> None:
        self.root = root

    def batches(
        self, index_batches: Iterable[Tensor], *, train: bool, key: Any, device: torch.device
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Tokens (N, 6), and each one's successor."""
        for index in index_batches:
            tokens = (index[:, None] + torch.arange(LENGTH + 1)) % TOKENS
            yield tokens[:, :-1].to(device), tokens[:, 1:].contiguous().to(device)


class Successor(nn.Module):
    """An embedding and a layer; `width` has no type, as in many a model."""

    def __init__(self, width=16) -> None:  # no type: that is the case under test
        super().__init__()
        self.embedding, self.head = nn.Embedding(TOKENS, width), nn.Linear(width, TOKENS)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


def small(num_classes: int) -> nn.Module:
    """A factory, with one of the arguments that the suite offers."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(num_classes)) if num_classes < 0 else Successor(8)
