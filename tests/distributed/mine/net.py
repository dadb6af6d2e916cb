"""A small network with all that a checkpoint must hold: batch statistics, dropout, and parameters with momentum.

It can also stall, fail or go wrong at a chosen training pass of a chosen rank, or be told to stop in an evaluation: the
environment says so, because options would be a part of the run, which a checkpoint must match.
"""

import os
import resource
import signal
import time

import torch
from torch import Tensor, nn

PAUSE, HURRY, TROUBLE = "WIREBENCH_TEST_PAUSE_MS", "WIREBENCH_TEST_HURRY", "WIREBENCH_TEST_TROUBLE"
FULL_BYTES = 3000


class Net(nn.Module):
    """Images (N, C, 8, 8) -> logits (N, num_classes).

    The environment's PAUSE is added to every training pass, so that a test can meet a run at a step of its choice; from
    the moment that there is a file HURRY it is not.
    TROUBLE is "KIND PASS RANK": what happens at that training pass (from 0) of that rank (-1: of all); the kind
    `terminate_evaluation` comes at that pass over test images, before the first layer.
    """

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int], dropout: float = 0.2) -> None:
        super().__init__()
        self.conv = nn.Conv2d(image_shape[0], 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(8 * image_shape[1] * image_shape[2] // 4, num_classes)
        self.pause_seconds, self.hurry = float(os.environ.get(PAUSE, "0")) / 1000, os.environ.get(HURRY, "")
        self.trouble, at, rank = os.environ.get(TROUBLE, "none 0 -1").split()
        mine = os.environ.get("HOROVOD_RANK") or os.environ.get("RANK") or "0"
        self.at = int(at) if int(rank) in (-1, int(mine)) else -1
        self.passes = self.evaluations = 0

    def forward(self, images: Tensor) -> Tensor:
        """Logits, after what the options ask for."""
        if not self.training:
            self.evaluations += 1
            if self.trouble == "terminate_evaluation" and self.evaluations == self.at + 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return self._logits(images)
        logits = self._logits(images)
        if not os.path.exists(self.hurry):
            time.sleep(self.pause_seconds)
        self.passes += 1
        if self.passes == self.at + 1:
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
        if self.trouble == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.trouble == "full_disk":
            # No file of this process grows beyond this: a few lines of steps.jsonl, and what is printed.
            resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_BYTES, resource.RLIM_INFINITY))
        if self.trouble == "terminate":
            os.kill(os.getpid(), signal.SIGTERM)
        if self.trouble == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return logits
