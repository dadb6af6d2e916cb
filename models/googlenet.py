"""GoogLeNet for ImageNet: torchvision's (Szegedy et al. 2015, with BatchNorm). At 1000 classes 13,004,888 parameters
with the two auxiliary heads, 6,624,904 without.
"""

import torchvision
from torch import Tensor

from wirebench.models.parts.shapes import check_image_shape


class GoogLeNet(torchvision.models.GoogLeNet):
    """Images (N, 3, H, W) of at least 15x15 pixels -> logits (N, num_classes).

    aux_heads  while training return (logits, [logits of the first head, of the second]); the loss weighs them
    """

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int], aux_heads: bool = True) -> None:
        check_image_shape(self, image_shape, least_side=15, channels=3)
        super().__init__(num_classes=num_classes, aux_logits=aux_heads, init_weights=True)

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, list[Tensor]]:
        """Logits of the images; in training also the logits of the auxiliary heads."""
        output = super().forward(images)
        if isinstance(output, Tensor):
            return output
        return output.logits, [output.aux_logits1, output.aux_logits2]
