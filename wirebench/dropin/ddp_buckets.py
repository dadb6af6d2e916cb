"""DDP's buckets as ours: a place in one flat gradient for each parameter, once DDP cuts its buckets no more."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from wirebench.errors import UserError
from wirebench.gradient.flat import Bucket, Layer

DENSE_STEPS = 2
"""Before DDP's buckets stay: those of the first step are in order of registration, those of the second in backward
order."""


class DdpBuckets:
    """The flat gradient that DDP's buckets make, one after the other.

    parameters  the `id` of each parameter that is in a bucket
    groups      of each bucket, the positions of its layers
    layers      all of them, in the order of the buckets; empty until the second step has ended
    """

    def __init__(self) -> None:
        self.parameters: set[int] = set()
        self.layers: tuple[Layer, ...] = ()
        self._cut: list[list[Tensor]] = []
        self.groups: list[range] = []

    def note(self, bucket: dist.GradBucket, step: int) -> None:
        """A bucket of one of the first steps."""
        if bucket.index() == 0:
            self._cut = []
        self._cut.append(list(bucket.parameters()))
        if bucket.is_last():
            self.parameters = {id(parameter) for group in self._cut for parameter in group}
            if step == DENSE_STEPS - 1:
                self._lay_out()

    def bucket(self, given: dist.GradBucket, param: Tensor) -> Bucket:
        """The bucket with its place; UserError where it is not the one that had this number before."""
        index, mine = given.index(), given.parameters()
        known = self._cut[index] if index < len(self._cut) else []
        if len(mine) != len(known) or any(a is not b for a, b in zip(mine, known, strict=True)):
            raise UserError(
                f"comm_hook: DDP's bucket {index} has other parameters than before; residuals are kept by place"
            )
        group = self.groups[index]
        return Bucket(index, given.buffer(), param, self.layers[group.start : group.stop], self.layers)

    def sizes(self) -> list[int]:
        """Elements of each layer: what a state belongs to."""
        return [layer.numel for layer in self.layers]

    def _lay_out(self) -> None:
        layers: list[Layer] = []
        for number, group in enumerate(self._cut):
            first = len(layers)
            for place, parameter in enumerate(group):
                start = layers[-1].stop if layers else 0
                rows = parameter.shape[0] if parameter.dim() else 1
                layers.append(Layer(f"{number}.{place}", start, start + parameter.numel(), parameter.dim(), rows))
            self.groups.append(range(first, len(layers)))
        self.layers = tuple(layers)


def weights(parameters: Sequence[Tensor]) -> Tensor:
    """One flat copy of a bucket's parameters, in its order."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
