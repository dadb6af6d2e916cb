"""Weights of a rank's own, beside those that all ranks share: what becomes of them in a world of another size."""

from collections.abc import Sequence

from torch import Tensor


def together(weights: Sequence[Tensor], common: Tensor, weight: float) -> Tensor:
    """A rank's weights that stand for those of several ranks of an earlier world; `common` for those of none.

    All that counts of them is the ranks' mean distance from the common weights, so it is to stay what it was: as with
    residuals, the distances are added and multiplied by `weight`, the number of ranks now over that of then.
    """
    mine = common.clone()
    for each in weights:
        mine.add_(each - common, alpha=weight)
    return mine
