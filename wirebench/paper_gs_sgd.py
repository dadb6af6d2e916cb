"""What the gs-SGD paper claims of speed: Dai, Diao, Li and Xu, arXiv 2108.06004, Table II.

Throughput of 4 workers on 1 Gbit/s Ethernet. k, rows, columns, batch size and the GPU are not stated.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

IMAGES_PER_SECOND = {
    "ResNet-20": {"gtopk": 804, "sketched_sgd": 976, "gs_sgd": 1038},
    "VGG-16": {"gtopk": 325, "sketched_sgd": 827, "gs_sgd": 1014},
}
TOLERANCE = 0.1
"""A ratio that differs from the paper's by no more than this share is near it."""

_MODELS: tuple[tuple[str, dict[str, object]], ...] = (
    ("ResNet-20", {"name": "replay", "trace": "resnet20_gtx1080ti"}),
    ("ResNet-20", {"name": "resnet_cifar", "depth": 20}),
    ("VGG-16", {"name": "replay", "trace": "vgg16_cifar_gtx1080ti"}),
    ("VGG-16", {"name": "vgg_cifar", "depth": 16}),
)


def model_of(section: Mapping[str, Any]) -> str | None:
    """The paper's name of the model of a record's config.model; None for one that it says nothing of."""
    found = (name for name, keys in _MODELS if all(section.get(key) == value for key, value in keys.items()))
    return next(found, None)


class Speedup(NamedTuple):
    """gs-SGD's throughput over `rival`'s: `ratio`, from the table's figures, all above 1."""

    rival: str
    ratio: float

    def verdict(self, measured: float, low: float, high: float) -> str:
        """What a measured ratio says of the claim.

        low, high  its spread; where that holds 1 as well as ratios near the claim, the claim's effect is too small to
                   be told from none
        """
        least, most = (1 - TOLERANCE) * self.ratio, (1 + TOLERANCE) * self.ratio
        numbers = f"{measured:.2f}x, not {self.ratio}x"
        if low <= 1 <= high and low <= most and high >= least:
            found = f"cannot be told: {low:.2f}x to {high:.2f}x holds 1x as well as the claim"
        elif max(least, 1) < measured <= most:
            found = "reproduced"
        elif low > 1:
            found = f"faster too, by another factor: {numbers}"
        else:
            found = f"not reproduced: {numbers}"
        return f"{found}; the paper states neither k nor the sketch's size"


SPEEDUPS = {
    model: [Speedup(rival, round(rates["gs_sgd"] / rates[rival], 2)) for rival in ("gtopk", "sketched_sgd")]
    for model, rates in IMAGES_PER_SECOND.items()
}
"""VGG-16: 3.12 and 1.23; ResNet-20: 1.29 and 1.06."""
