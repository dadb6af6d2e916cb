"""What is trained to count bytes: IWP in every reading of what the paper leaves open, and the methods it names."""

from collections.abc import Mapping

IWP = "compressor.name=iwp"
FIXED, LAYERWISE, TERNGRAD, DGC = "fixed", "layer-wise", "terngrad", "dgc"
"""First words of the labels, by which claims name them."""
THRESHOLDS = (0.05, 0.1, 0.01, 0.005)
"""The paper's four, of which it does not say which one its table's row has; our default comes first."""
LITERAL = 0.05
"""Threshold of the rows that differ in rho alone."""

# Layer-wise beside fixed 0.05: the same base in all epochs, so that only equation 4 differs. It begins with the second
# epoch, since C is the median of an epoch that has ended.
VARIANTS: Mapping[str, tuple[str, ...]] = {
    **{f"{FIXED} {each:g}": (IWP, f"compressor.threshold={each:g}") for each in THRESHOLDS},
    LAYERWISE: (
        IWP, "compressor.mode=layerwise", f"compressor.schedule=[{LITERAL:g}]", "compressor.schedule_epochs=[]",
    ),
    # The paper names both and specifies neither: a norm of 1 for all ranks together, as DGC divides it; an epoch at its
    # smallest threshold.
    f"{FIXED} {LITERAL:g} clip=1": (IWP, f"compressor.threshold={LITERAL:g}", "compressor.clip=1"),
    f"{FIXED} {LITERAL:g} warm-up": (
        IWP, "compressor.mode=schedule", f"compressor.schedule=[{THRESHOLDS[-1]:g},{LITERAL:g}]",
        "compressor.schedule_epochs=[1]",
    ),
    f"{FIXED} {LITERAL:g} rho=1": (IWP, f"compressor.threshold={LITERAL:g}", "compressor.rho=1"),
    f"{FIXED} {LITERAL:g} rho=0": (IWP, f"compressor.threshold={LITERAL:g}", "compressor.rho=0"),
    TERNGRAD: ("compressor.name=terngrad",),
    f"{DGC} 0.1%": ("compressor.name=dgc", "compressor.density=0.001"),
}  # fmt: skip
"""Overrides by label, the most telling first. rho is 0.05 where the label does not say; 1 is the paper's wording."""

DENSE = "dense"
NETWORK: Mapping[str, tuple[str, ...]] = {
    DENSE: ("compressor.name=none",),
    **{f"{FIXED} {each:g}": VARIANTS[f"{FIXED} {each:g}"] for each in (0.05, 0.1)},
}
"""What takes turns on a slow network."""


def kind(label: str) -> str:
    """The method of a label."""
    return label.partition(" ")[0]


def named(label: str) -> str:
    """The label as a folder's name."""
    return label.replace(" ", "_").replace("%", "percent")


def unlabelled(label: str) -> str:
    """The variant of a run's label, which begins with its part."""
    return label.partition(", ")[2]
