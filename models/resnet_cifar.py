"""ResNet for CIFAR-10: He et al. 2016, "Deep Residual Learning for Image Recognition", section 4.2.

A 3x3 stem, three stages of 16, 32 and 64 filters with n blocks of two 3x3 convolutions each (depth 6n+2), shortcuts
without parameters (option A), global average pooling. Parameters for 3 channels and 10 classes: ResNet-20 269,722;
ResNet-32 464,154; ResNet-44 658,586; ResNet-56 853,018; ResNet-110 1,727,962. ResNet-8 is not the paper's: one block
per stage, for tasks that take minutes on a CPU.
"""

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from wirebench.models.parts.kaiming import kaiming_init


class CifarResNet(nn.Module):
    """Images (N, C, H, W) of any size and number of channels -> logits (N, num_classes).

    depth  6n+2
    width  filters of the first stage; the second has twice, the third four times as many
    """

    def __init__(
        self,
        num_classes: int,
        image_shape: tuple[int, int, int],
        depth: Literal[8, 20, 32, 44, 56, 110] = 20,
        width: int = 16,
    ) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width is positive, got {width}")
        blocks_per_stage = (depth - 2) // 6
        self.conv = nn.Conv2d(image_shape[0], width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.stages = nn.Sequential(
            _stage(width, width, blocks_per_stage, stride=1),
            _stage(width, 2 * width, blocks_per_stage, stride=2),
            _stage(2 * width, 4 * width, blocks_per_stage, stride=2),
        )
        self.linear = nn.Linear(4 * width, num_classes)
        kaiming_init(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the images."""
        features = self.stages(F.relu(self.norm(self.conv(images))))
        return self.linear(features.mean((2, 3)))


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut that has no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride, self.new_channels = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        residual = F.relu(self.norm1(self.conv1(x)))
        residual = self.norm2(self.conv2(residual))
        return F.relu(residual + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        """Option A: every stride-th pixel, and zeros for the channels that are new."""
        if self.stride == 1 and self.new_channels == 0:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [_Block(outputs, outputs, stride=1) for _ in range(blocks - 1)]
    return nn.Sequential(_Block(inputs, outputs, stride), *rest)
