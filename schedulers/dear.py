"""DeAR: reduce-scatter in the backward pass, all-gather under the next forward pass.

Zhang et al., "DeAR: Accelerating Distributed Deep Learning with Fine-Grained All-Reduce Pipelining", ICDCS 2023 (arXiv
2302.12445). An all-reduce is a reduce-scatter and an all-gather, and only a layer's next forward pass needs the second:
each layer waits there for its own gradients, and is updated right before it is used.
"""

from wirebench.exchange.reduce_scatter import ReduceScatterDriver
from wirebench.schedulers.fused import Fused


class Dear(Fused):
    """Messages of at least `bucket_cap_mb` MiB of fp32 gradient; the two parts of the collective's plan run apart.

    The weights equal any other schedule's. `collective.name=native` is refused: an engine's own sum has no parts.
    A compressor's gathers and merges before its first sum run in the backward pass; everything after that sum overlaps
    with the next forward pass. The model must use its parameters through their modules' own forward methods; otherwise
    the run ends with an error. Virtual workers overlap nothing, and exchange as with `fused`.
    """

    driver = ReduceScatterDriver

    def __init__(self, bucket_cap_mb: float = 25.0) -> None:
        super().__init__(bucket_cap_mb, bucket_cap_mb)
