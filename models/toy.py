"""A network of a few hundred parameters, for tests and first tries: one convolution, one linear layer."""

import torch
from torch import Tensor, nn

from wirebench.errors import UserError
from wirebench.models.parts.shapes import check_image_shape


class Toy(nn.Module):
    """Images (N, C, H, W) of at least 2x2 pixels -> logits (N, num_classes).

    hidden  filters of the convolution; their means over the four quarters of the image are classified
    unused  add a parameter of 3 elements that never takes part in the loss and so never gets a gradient
    """

    def __init__(
        self, num_classes: int, image_shape: tuple[int, int, int], hidden: int = 8, unused: bool = False
    ) -> None:
        check_image_shape(self, image_shape, least_side=2)
        if hidden < 1:
            raise UserError(f"model.hidden: needs at least 1, got {hidden}")
        super().__init__()
        channels, height, width = image_shape
        quarter = ((height + 1) // 2, (width + 1) // 2)
        self.conv = nn.Conv2d(channels, hidden, 3, padding=1)
        self.pool = nn.AvgPool2d(quarter, ceil_mode=True)
        self.linear = nn.Linear(4 * hidden, num_classes)
        self.unused = nn.Parameter(torch.zeros(3)) if unused else None

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the images."""
        return self.linear(self.pool(self.conv(images).relu()).flatten(1))
