"""Top-k with error feedback: each rank sends its largest entries, all ranks gather them.

Lin et al., "Deep Gradient Compression", ICLR 2018 (the selection); Stich et al., "Sparsified SGD with Memory",
NeurIPS 2018 (the memory). Nothing is merged on the way, so what a rank receives grows with the number of ranks.
"""

from compressors._sparse import Sparse, average_of, check_bucket
from compressors.base import Exchange
from compressors.encoding import Indices, Values
from compressors.thresholds import Rule, choose
from wirebench.layout import Bucket
from wirebench.phases import phase
from wirebench.requests import Gather
from wirebench.world import World


class TopK(Sparse):
    """Each rank sends the `density` of its entries (at least one per bucket) that are largest by magnitude.

    What it does not send stays in its residual and is added to its next gradient.
    selection        how the largest are found (thresholds.py)
    values, indices  how entries are coded (encoding.py)
    """

    def __init__(
        self,
        density: float = 0.001,
        selection: Rule = "exact",
        values: Values = "fp32",
        indices: Indices = "int32",
    ) -> None:
        super().__init__(density, values, indices)
        self.selection = selection

    def exchange(self, bucket: Bucket, world: World) -> Exchange:
        """One gather of indices and values.

        Passes over the whole bucket: reading both and writing one for the sum with the residual, two readings for the
        selection, one writing to clear the gradient. All else touches chosen entries only, the division too.
        """
        check_bucket(bucket)
        grad, numel = bucket.grad, bucket.grad.numel()
        with phase("update"):
            residual = self.feedback.accumulate(bucket, world)
        with phase("select"):
            index = choose(residual, self.count(numel), self.selection, world, bucket.start)
        with phase("encode"):
            message = self.code.encode(index, self.take_out(bucket, index), numel)
        messages = yield Gather(message, values=index.numel() * self.code.value_bytes)
        with phase("decode"):
            return average_of(grad, [self.code.decode(each, numel) for each in messages], world.size)
