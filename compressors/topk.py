"""Top-k with error feedback: each rank sends its largest entries, all ranks gather them.

Lin et al., "Deep Gradient Compression", ICLR 2018 (the selection); Stich et al., "Sparsified SGD with Memory",
NeurIPS 2018 (the memory). Nothing is merged on the way, so what a rank receives grows with the number of ranks.
"""

from wirebench.compressors.sparse.base import SparseGather
from wirebench.compressors.sparse.encoding import Indices, Values
from wirebench.compressors.sparse.thresholds import Rule


class TopK(SparseGather):
    """Each rank sends the `density` of its entries (at least one per bucket) that are largest by magnitude.

    What it does not send stays in its residual and is added to its next gradient.
    selection        how the largest are found (thresholds.py)
    values, indices  how entries are coded (encoding.py)

    Memory: the residual, 1 d.
    """

    def __init__(
        self,
        density: float = 0.001,
        selection: Rule = "exact",
        values: Values = "fp32",
        indices: Indices = "int32",
    ) -> None:
        super().__init__(density, selection, values, indices)
