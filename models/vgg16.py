"""VGG-16 for ImageNet, without BatchNorm: torchvision's (Simonyan and Zisserman 2015, table 1: D), 138,357,544
parameters at 1000 classes.
"""

from torchvision.models.vgg import VGG, cfgs, make_layers

from wirebench.models.parts.shapes import check_image_shape


class VGG16(VGG):
    """Images (N, 3, H, W) of at least 32x32 pixels -> logits (N, num_classes)."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        check_image_shape(self, image_shape, least_side=32, channels=3)
        super().__init__(make_layers(cfgs["D"]), num_classes=num_classes, init_weights=True)
