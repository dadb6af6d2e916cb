"""No overlap at all: every layer is its own message, sent after the backward pass (MG-WFBP, Eq. 3)."""

from wirebench.exchange.overlapped import AfterBackward
from wirebench.exchange.scheduler import OneByOne


class Naive(OneByOne):
    """One message per parameter tensor, in backward order, once all gradients are there."""

    driver = AfterBackward
