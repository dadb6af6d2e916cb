"""ResNet-101 for CIFAR: torchvision's bottleneck network with the stem that 32x32 images need.

He et al. 2016 give ResNet-101 for ImageNet only. For small images the field replaces the 7x7 stride-2 convolution by a
3x3 one and drops the max pooling, so that the four stages see 32, 16, 8 and 4 pixels. 42,512,970 parameters for 3
channels and 10 classes.
"""

from torch import nn
from torchvision.models.resnet import Bottleneck, ResNet


class CifarResNet101(ResNet):
    """Images (N, C, H, W) of any size and number of channels -> logits (N, num_classes)."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__(Bottleneck, [3, 4, 23, 3], num_classes=num_classes)
        self.conv1 = nn.Conv2d(image_shape[0], 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.conv1.weight, mode="fan_out", nonlinearity="relu")  # as torchvision's others
        self.maxpool = nn.Identity()
