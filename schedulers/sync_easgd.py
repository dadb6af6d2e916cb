"""SyncEASGD as MG-WFBP reads it: the whole gradient in one message, after the backward pass.

It is plain synchronous SGD: nothing elastic is averaged (PAPERS: MG-WFBP, arXiv 1811.11141, section II). The name is
kept because the paper's tables use it.
"""

from collections.abc import Sequence
from typing import ClassVar

from schedulers.base import Cost, LayerCost


class SyncEasgd:
    """One message of all layers."""

    needs_profile: ClassVar[bool] = False
    after_backward: ClassVar[bool] = True
    native: ClassVar[bool] = False

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """A single group."""
        return [range(len(layers))]
