"""The loss of a classifier, with and without auxiliary heads.

A model returns logits (N, classes) or, while it trains, (logits, [logits of each auxiliary head]).
"""

import torch.nn.functional as F
from torch import Tensor

Output = Tensor | tuple[Tensor, list[Tensor]]

_AUXILIARY_WEIGHT = 0.3  # Szegedy et al. 2015, "Going Deeper with Convolutions", section 5


def logits_of(output: Output) -> Tensor:
    """The logits (N, classes) that predict, whatever the model returned beside them."""
    return output[0] if isinstance(output, tuple) else output


def cross_entropy(output: Output, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross entropy over the batch, a scalar in fp32 also where the logits are bf16 (autocast).

    output           logits (N, classes); each auxiliary head adds 0.3 times its own loss
    labels           class numbers, int64, shape (N,)
    label_smoothing  share of the target that is spread evenly over all classes, in [0, 1]
    """
    heads = output[1] if isinstance(output, tuple) else []
    loss = F.cross_entropy(logits_of(output).float(), labels, label_smoothing=label_smoothing)
    for head in heads:
        loss = loss + _AUXILIARY_WEIGHT * F.cross_entropy(head.float(), labels, label_smoothing=label_smoothing)
    return loss
