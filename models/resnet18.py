"""ResNet-18 for ImageNet: torchvision's (He et al. 2016), 11,689,512 parameters at 1000 classes."""

from torchvision.models.resnet import BasicBlock, ResNet

from wirebench.models.parts.shapes import check_image_shape


class ResNet18(ResNet):
    """Images (N, 3, H, W) -> logits (N, num_classes)."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        check_image_shape(self, image_shape, channels=3)
        super().__init__(BasicBlock, [2, 2, 2, 2], num_classes=num_classes)
