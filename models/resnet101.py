"""ResNet-101 for ImageNet: torchvision's (He et al. 2016, with the stride in the 3x3 convolution), 44,549,160
parameters at 1000 classes.
"""

from torchvision.models.resnet import Bottleneck, ResNet

from wirebench.models.parts.shapes import check_image_shape


class ResNet101(ResNet):
    """Images (N, 3, H, W) -> logits (N, num_classes)."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        check_image_shape(self, image_shape, channels=3)
        super().__init__(Bottleneck, [3, 4, 23, 3], num_classes=num_classes)
