"""Fixed threshold with error feedback: each rank sends every entry whose magnitude is above it, all ranks gather them.

Aji and Heafield, "Sparse Communication for Distributed Gradient Descent", EMNLP 2017, arXiv 1704.05021: entries above
the threshold are sent with their values, the rest stays in the residual. There the threshold follows from the share of
entries to drop, here it is given. It is not the rule of Strom, "Scalable Distributed DNN Training Using Commodity GPU
Cloud Computing", Interspeech 2015: that rule sends plus or minus the threshold, whatever the value, and keeps the
difference.

The payload depends on the model and the step: a rank may send nothing.
"""

import math

from torch import Tensor

from wirebench.compressors.common.feedback import Feedback
from wirebench.compressors.sparse.base import gathered
from wirebench.compressors.sparse.encoding import Indices, SparseCode, Values
from wirebench.compressors.sparse.thresholds import above
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Exchange, Method
from wirebench.gradient.flat import Bucket

EXPECTED_SHARE = 0.01
"""The share of the entries that planning assumes, since it is unknown before a run."""


class Threshold(Method):
    """Each rank sends the entries of its residual plus gradient that are larger than `threshold`, and keeps the others.

    threshold        magnitude, in units of one rank's mean gradient over its batch. No value suits all models; 0 sends
                     every entry that is not 0
    values, indices  how entries are coded (encoding.py)
    Memory: the residual, 1 d, none of it above the threshold; while it works 20 bytes for every entry of every rank:
    0.4 d where 4 ranks send 2 % each. Measures: `density`, the share that is sent.
    """

    keeps = "exactly"
    bounded_by = "threshold"
    uncaptured = "the lengths of its messages depend on values"

    def __init__(self, threshold: float = 0.01, values: Values = "fp32", indices: Indices = "int32") -> None:
        super().__init__()
        if not 0 <= threshold < math.inf:
            raise ValueError(f"threshold is a magnitude of at least 0, got {threshold}")
        self.threshold = threshold
        self.code = SparseCode(values, indices)
        self.feedback = self.memory = Feedback()
        self._share = 0.0

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """See `gathered`. The selection reads the bucket once; on a GPU twice, and the host waits in between for the
        number of entries.
        """

        def chosen(residual: Tensor) -> Tensor:
            # The share that was sent last only decides how to search, not what is found.
            index = above(residual, self.threshold, self._share)
            self._share = index.numel() / residual.numel()
            if world.measuring:
                self.measures.ratio("density", index.numel(), bucket.numel)
            return index

        return (yield from gathered(self.feedback, bucket, world, self.code.of(bucket), chosen))

    def wire_bytes(self, numel: int, size: int) -> int:
        """A value and an index for each entry that is sent, whose number is a guess."""
        return self.code.expected_bytes(max(int(EXPECTED_SHARE * numel), 1), numel)
