"""What the gs-SGD paper says, and densities of other papers; without what judges it, which takes long to import."""

from pathlib import Path

from papers.published import load

PUBLISHED = load(Path(__file__).parent)
READINGS = (0.004, 0.001)
"""Densities beside 1 %: at which the paper's own warm-up ends, and which gTop-k and DGC have."""


def at(label: str, share: float) -> str:
    """The label of a method at another density than 1 %."""
    return f"{label} density={share:g}"
