"""One rank's training state, and what it does with a batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from wirebench.config.loader import TrainConfig
from wirebench.data.base import probe_batch
from wirebench.data.shard import Shard
from wirebench.gradient.flat import FlatGradient
from wirebench.training.loss import cross_entropy, logits_of, row_by_row
from wirebench.utils.rng import seed_draws, seed_of

TOP = (1, 5)
IMAGE_DIMENSIONS = 4
"""Number, channels, height and width: what has others has no channels to put last."""


@dataclass
class Replica:
    """A model replica with its own shard, batch statistics and optimizer state.

    module      what the forward pass calls: the model, or the engine's wrapper around it
    unused      names of parameters that take no part in the loss
    clip        largest norm of the gradient that the optimizer steps with; 0: any
    loss        of the step's batch so far
    epoch_loss  sum of the losses of the epoch's steps so far, float64
    """

    rank: int
    model: nn.Module
    module: nn.Module
    flat: FlatGradient
    optimizer: Optimizer
    shard: Shard
    section: TrainConfig
    device: torch.device
    unused: list[str]
    clip: float = 0.0

    def __post_init__(self) -> None:
        self.loss = torch.zeros((), device=self.device)
        self.epoch_loss = torch.zeros((), dtype=torch.float64, device=self.device)

    def begin_step(self) -> None:
        """Before the first micro-batch of a step."""
        self.loss = torch.zeros_like(self.loss)

    def end_step(self) -> None:
        """After the last micro-batch of a step."""
        self.epoch_loss += self.loss

    def gradients(self, *, whole: bool) -> list[Tensor]:
        """The optimizer's gradients: the flat one or, if an engine's own synchroniser fills them, each parameter's.

        whole  the gradient is the flat one
        """
        if whole:
            return [self.flat.grad]
        return [parameter.grad for parameter in self.flat.parameters if parameter.grad is not None]

    def forward(self, images: Tensor, labels: Tensor, step: int, part: int, batch: int = 0) -> Tensor:
        """Loss of one micro-batch, weighted so that the micro-batches of a step add up to the step's mean loss.

        batch  images of the step; 0: the images of `train.accumulation` micro-batches of this size

        Dropout and the like draw from a stream that (seed, rank, step, part) names, so a resumed run draws alike.
        """
        seed_draws(seed_of("forward", self.section.seed, self.rank, step, part), self.device)
        with self._autocast():
            output = self.module(self._laid_out(images))
        loss = cross_entropy(output, labels, self.section.label_smoothing)
        loss = loss / (batch / len(images) if batch else self.section.accumulation)
        self.loss += loss.detach()
        return loss

    @torch.no_grad()
    def evaluate(self, after_batch: Callable[[], None] = lambda: None) -> Tensor:
        """Sums over this rank's share of the test set, float64: (loss, top-1 hits, top-5 hits, labels)."""
        totals = torch.zeros(len(TOP) + 2, dtype=torch.float64)
        self.model.eval()
        try:
            for images, labels in self.shard.test():
                with self._autocast():
                    logits = logits_of(self.model(self._laid_out(images))).float()
                logits, labels = row_by_row(logits, labels)
                loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
                totals += torch.tensor([loss.item(), *_hits(logits, labels), len(labels)], dtype=torch.float64)
                after_batch()
        finally:
            self.model.train()
        return totals

    def blank_batch(self, count: int) -> tuple[Tensor, Tensor]:
        """A batch to try the model on, laid out as `forward` lays out its own; see data.probe_batch."""
        images, labels = probe_batch(self.shard.dataset, count, self.device)
        return self._laid_out(images), labels

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.section.precision == "bf16")

    def _laid_out(self, images: Tensor) -> Tensor:
        with_channels = self.section.channels_last and images.dim() == IMAGE_DIMENSIONS
        return images.contiguous(memory_format=torch.channels_last) if with_channels else images


def _hits(logits: Tensor, labels: Tensor) -> Sequence[float]:
    best = logits.topk(min(max(TOP), logits.shape[1]), dim=1).indices
    hits = best == labels[:, None]
    return [hits[:, :k].any(dim=1).sum().item() for k in TOP]
