"""VGG for CIFAR: the convolutions of Simonyan and Zisserman 2015 (table 1: A, D, E), BatchNorm, one linear layer.

The three fully connected layers of the ImageNet network give way to a single one, 512 -> classes. Parameters for 3
channels and 10 classes: VGG-11 9,231,114; VGG-16 14,728,266; VGG-19 20,040,522. The convolutions keep the biases that
BatchNorm makes idle, as in the reference networks, so that the counts are the published ones.
"""

from typing import Literal

from torch import Tensor, nn

from wirebench.models.parts.kaiming import kaiming_init
from wirebench.models.parts.shapes import check_image_shape

_WIDTHS = (64, 128, 256, 512, 512)
_CONVOLUTIONS_PER_STAGE = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


class CifarVGG(nn.Module):
    """Images (N, C, H, W) of at least 32x32 pixels -> logits (N, num_classes)."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int], depth: Literal[11, 16, 19] = 16) -> None:
        check_image_shape(self, image_shape, least_side=32)  # five poolings halve it
        super().__init__()
        layers: list[nn.Module] = []
        channels = image_shape[0]
        for width, convolutions in zip(_WIDTHS, _CONVOLUTIONS_PER_STAGE[depth], strict=True):
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.linear = nn.Linear(channels, num_classes)
        kaiming_init(self)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the images; at 32x32 one pixel is left to average over."""
        return self.linear(self.features(images).mean((2, 3)))
