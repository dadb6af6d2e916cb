"""Wait-free backpropagation: every layer is its own message, sent as soon as its gradient is there.

Zhang et al., "Poseidon", USENIX ATC 2017; the baseline of MG-WFBP (arXiv 1811.11141).
"""

from wirebench.exchange.scheduler import OneByOne


class Wfbp(OneByOne):
    """One message per parameter tensor, in backward order."""
