"""Weights of a rank's own, beside those that all ranks share: what becomes of them in a world of another size."""

from collections.abc import Sequence

from torch import Tensor


def together(weights: Sequence[Tensor], common: Tensor, weight: float) -> Tensor:
    """A rank's weights in place of several ranks' weights in an earlier world; `common` if it replaces no rank.

    Only the ranks' mean distance from the common weights matters, so that mean must not change. As with residuals, the
    distances are added and multiplied by `weight`, the new world size over the earlier one.
    """
    mine = common.clone()
    for each in weights:
        mine.add_(each - common, alpha=weight)
    return mine
