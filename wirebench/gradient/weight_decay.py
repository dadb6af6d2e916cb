"""Weight decay as part of the gradient, before it is compressed."""

from wirebench.config.loader import OptimizerConfig
from wirebench.gradient.flat import Bucket


class Decay:
    """Weight decay as part of the gradient, for a compressor that applies the momentum itself.

    Without compression it is the decay of PyTorch's SGD: the gradient becomes g + decay * w before the momentum
    accumulates it.
    """

    def __init__(self, section: OptimizerConfig) -> None:
        self.rate, self.all = section.weight_decay, section.decay_norm

    def join(self, bucket: Bucket) -> None:
        """Add the decay to `bucket.grad`, with decay_norm = false to tensors of more than one dimension only."""
        if self.rate and self.all:
            bucket.grad.add_(bucket.param, alpha=self.rate)
        elif self.rate:
            for layer in bucket.layers:
                place = slice(layer.start - bucket.start, layer.stop - bucket.start)
                if layer.ndim > 1:
                    bucket.grad[place].add_(bucket.param[place], alpha=self.rate)
