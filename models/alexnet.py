"""AlexNet for ImageNet: torchvision's (Krizhevsky 2014, "One weird trick"), 61,100,840 parameters at 1000 classes."""

import torchvision

from wirebench.models.parts.shapes import check_image_shape


class AlexNet(torchvision.models.AlexNet):
    """Images (N, 3, H, W) of at least 63x63 pixels -> logits (N, num_classes)."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        check_image_shape(self, image_shape, least_side=63, channels=3)
        super().__init__(num_classes=num_classes)
