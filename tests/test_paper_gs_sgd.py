"""wirebench/paper_gs_sgd.py: the paper's claims, and what a measured ratio says of them."""

import pytest

from wirebench.paper_gs_sgd import SPEEDUPS, Speedup


@pytest.mark.parametrize(
    ("claimed", "measured", "low", "high", "said"),
    [
        (1.06, 0.96, 0.95, 0.97, "not reproduced: 0.96x, not 1.06x"),
        (1.06, 1.09, 1.07, 1.11, "reproduced"),
        (1.06, 1.09, 0.91, 1.29, "cannot be told: 0.91x to 1.29x holds 1x as well as the claim"),
        (1.06, 1.50, 1.45, 1.55, "faster too, by another factor: 1.50x, not 1.06x"),
        (3.12, 1.50, 1.45, 1.55, "faster too, by another factor: 1.50x, not 3.12x"),
        (3.12, 1.02, 0.90, 1.10, "not reproduced: 1.02x, not 3.12x"),
        (3.12, 0.56, 0.45, 0.66, "not reproduced: 0.56x, not 3.12x"),
        (1.23, 1.00, 1.00, 1.00, "not reproduced: 1.00x, not 1.23x"),
        (1.23, 1.22, 1.18, 1.22, "reproduced"),
    ],
)
def test_what_a_ratio_says_of_a_claim(claimed: float, measured: float, low: float, high: float, said: str) -> None:
    verdict = Speedup("gtopk", claimed).verdict(measured, low, high)
    assert verdict == f"{said}; the paper states neither k nor the sketch's size"


def test_the_papers_ratios():
    assert {model: [claim.ratio for claim in claims] for model, claims in SPEEDUPS.items()} == {
        "ResNet-20": [1.29, 1.06],
        "VGG-16": [3.12, 1.23],
    }
