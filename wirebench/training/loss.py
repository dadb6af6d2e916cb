"""The loss of a classifier, with and without auxiliary heads.

A model returns logits (N, classes) or, while it trains, (logits, [logits of each auxiliary head]); torchvision's
GoogLeNet and Inception name these in a tuple (logits, aux_logits ...). A model with several labels in a sample, such as
a token's successors, returns logits (N, ..., classes) for labels (N, ...).
"""

import torch.nn.functional as F
from torch import Tensor

from wirebench.errors import UserError

Output = Tensor | tuple[Tensor, list[Tensor]]

_AUXILIARY_WEIGHT = 0.3  # Szegedy et al. 2015, "Going Deeper with Convolutions", section 5


def logits_of(output: object) -> Tensor:
    """The logits (N, classes) that predict, whatever the model returned beside them.

    UserError for an output of another form than Output.
    """
    return _parts(output)[0]


def _parts(output: object) -> tuple[Tensor, list[Tensor]]:
    """The model's logits, and the logits of each auxiliary head."""
    match output:
        case Tensor():
            return output, []
        case tuple((Tensor() as logits, list() | tuple() as heads)):
            return logits, list(heads)
    fields = getattr(output, "_fields", ("",))
    if fields[0] == "logits" and all(name.startswith("aux") for name in fields[1:]):
        logits, *heads = output  # type: ignore[misc]  # a tuple, as it has _fields
        return logits, [head for head in heads if head is not None]
    kind = f"a {type(output).__name__}"
    raise UserError(f"model.name: its output is {kind}; it must be logits, or a tuple (logits, [auxiliary logits])")


def row_by_row(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (labels, classes) and labels in one row, however many there are in a sample; UserError if they differ."""
    if logits.shape[:-1] != labels.shape:
        raise UserError(
            f"model.name: its output has shape {tuple(logits.shape)}, and the labels {tuple(labels.shape)}; cross "
            "entropy needs logits of the labels' shape, and classes as one more dimension at the end"
        )
    return logits.flatten(0, -2), labels.flatten()


def cross_entropy(output: Output, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean cross entropy over the batch, a scalar in fp32 also where the logits are bf16 (autocast).

    output           logits (N, ..., classes); each auxiliary head adds 0.3 times its own loss
    labels           class numbers, int64, shape (N, ...)
    label_smoothing  share of the target that is spread evenly over all classes, in [0, 1]
    """
    first, heads = _parts(output)
    logits, targets = row_by_row(first.float(), labels)
    loss = F.cross_entropy(logits, targets, label_smoothing=label_smoothing)
    for head in heads:
        logits, targets = row_by_row(head.float(), labels)
        loss = loss + _AUXILIARY_WEIGHT * F.cross_entropy(logits, targets, label_smoothing=label_smoothing)
    return loss
