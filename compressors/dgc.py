"""Deep Gradient Compression: top-k of a gradient with corrected momentum, its threshold taken from a sample.

Lin, Han, Mao, Wang and Dally, ICLR 2018, arXiv 1712.01887. Momentum is applied before the selection, to what each rank
has (section 3.2); where an entry is sent, its momentum is cleared too (factor masking, section 3.3). All ranks gather
all entries. Biases and normalisation go dense, with ordinary momentum.
"""

from wirebench.compressors.common.feedback import Feedback
from wirebench.compressors.sparse.base import SparseGather
from wirebench.compressors.sparse.encoding import Indices, Values
from wirebench.compressors.sparse.thresholds import Rule


class Dgc(SparseGather):
    """Each rank sends `density` of its entries; the paper's warm-up is compressor.warmup = [0.25, 0.0625, ...].

    momentum   of the correction, u <- m u + g; replaces the optimizer's
    nesterov   its Nesterov form
    clip       largest norm of the gradient of P ranks, each of which clips its own to clip / sqrt(P); needs the whole
               model in one bucket; 0: off
    masking    clear the momentum of what was sent
    selection  how the largest are found (thresholds.py): a strided sample, and exactly among what passes it; by kernels
               exactly among all
    values, indices  how entries are coded (encoding.py)

    Memory: residual and momentum, 2 d; 1 d with momentum = 0.
    """

    dense_below = 1

    def __init__(
        self,
        density: float = 0.001,
        momentum: float = 0.9,
        nesterov: bool = False,
        clip: float = 0.0,
        masking: bool = True,
        selection: Rule = "sampled",
        values: Values = "fp32",
        indices: Indices = "int32",
    ) -> None:
        super().__init__(density, selection, values, indices, Feedback(momentum, nesterov, clip, masking))
