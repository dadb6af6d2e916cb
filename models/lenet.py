"""LeNet-5 in today's dress: LeCun et al. 1998, with ReLU and max pooling.

Both convolutions are padded, so that images from 8x8 digits to 32x32 colours fit; the first linear layer takes what is
left after two halvings. Parameters with 10 classes: 1x8x8 21,386; 1x28x28 107,786; 3x32x32 136,886.
"""

from torch import Tensor, nn

from wirebench.models.parts.shapes import check_image_shape


class LeNet(nn.Module):
    """Images (N, C, H, W) of at least 4x4 pixels -> logits (N, num_classes)."""

    def __init__(self, num_classes: int, image_shape: tuple[int, int, int]) -> None:
        check_image_shape(self, image_shape, least_side=4)
        super().__init__()
        channels, height, width = image_shape
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Linear(16 * (height // 4) * (width // 4), 120), nn.ReLU(),
            nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, num_classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Logits of the images."""
        return self.classifier(self.features(images))
