"""A small network with all that a checkpoint must hold: batch statistics, dropout, and parameters with momentum.

It can also stall, fail or go wrong at a chosen training pass of a chosen rank.
"""

import os
import signal
import time
from typing import Literal

import torch
from torch import Tensor, nn

Trouble = Literal["none", "not_a_number", "infinite_loss", "error", "hang", "terminate", "kill"]


class Net(nn.Module):
    """Images (N, C, 8, 8) -> logits (N, num_classes).

    pause_ms  added to every training pass, so that a test can meet a run at a step of its choice
    trouble   what happens at training pass `at` (from 0) of the process with rank `rank` (-1: of all)
    """

    def __init__(
        self,
        num_classes: int,
        image_shape: tuple[int, int, int],
        dropout: float = 0.2,
        pause_ms: float = 0.0,
        trouble: Trouble = "none",
        at: int = 0,
        rank: int = -1,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(image_shape[0], 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(8 * image_shape[1] * image_shape[2] // 4, num_classes)
        self.pause_seconds, self.trouble, self.at = pause_ms / 1000, trouble, at
        mine = os.environ.get("HOROVOD_RANK") or os.environ.get("RANK") or "0"
        self.concerned = rank in (-1, int(mine))
        self.passes = 0

    def forward(self, images: Tensor) -> Tensor:
        """Logits, after what the options ask for."""
        logits = self._logits(images)
        if not self.training:
            return logits
        time.sleep(self.pause_seconds)
        self.passes += 1
        if self.concerned and self.passes == self.at + 1:
            return self._go_wrong(logits)
        return logits

    def _logits(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.conv(images)))
        return self.linear(self.dropout(nn.functional.max_pool2d(hidden, 2).flatten(1)))

    def _go_wrong(self, logits: Tensor) -> Tensor:
        if self.trouble == "not_a_number":
            return logits * torch.nan
        if self.trouble == "infinite_loss":
            # Of the wrong class's favour, whatever the label: the loss overflows, its gradient does not.
            far = torch.full_like(logits, -3e38)
            far[:, 0] = 3e38
            return logits + far
        if self.trouble == "error":
            raise RuntimeError("the model broke")
        if self.trouble == "hang":
            time.sleep(600)
        if self.trouble == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        if self.trouble == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return logits
