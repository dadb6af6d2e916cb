"""What the gs-SGD paper claims of speed: Dai, Diao, Li and Xu, arXiv 2108.06004, Table II.

Throughput of 4 workers on 1 Gbit/s Ethernet. k, rows, columns, batch size and the GPU are not stated.
"""

from typing import NamedTuple

IMAGES_PER_SECOND = {
    "ResNet-20": {"gtopk": 804, "sketched_sgd": 976, "gs_sgd": 1038},
    "VGG-16": {"gtopk": 325, "sketched_sgd": 827, "gs_sgd": 1014},
}
TOLERANCE = 0.1
"""A ratio that differs from the paper's by no more than this share reproduces it."""


class Speedup(NamedTuple):
    """gs-SGD's throughput over `rival`'s: `ratio`, from the table's figures."""

    rival: str
    ratio: float

    def verdict(self, measured: float) -> str:
        """What a measured ratio says of the claim."""
        near = abs(measured - self.ratio) <= TOLERANCE * self.ratio
        found = "reproduced" if near else f"not reproduced: {measured:.2f}x, not {self.ratio}x"
        return f"{found}; the paper states neither k nor the sketch's size"


SPEEDUPS = {
    model: [Speedup(rival, round(rates["gs_sgd"] / rates[rival], 2)) for rival in ("gtopk", "sketched_sgd")]
    for model, rates in IMAGES_PER_SECOND.items()
}
"""VGG-16: 3.12 and 1.23; ResNet-20: 1.29 and 1.06."""
