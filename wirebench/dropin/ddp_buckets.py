"""DDP's buckets as ours: a place in one flat gradient for each parameter, once DDP cuts its buckets no more."""

import gc
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from wirebench.errors import UserError
from wirebench.gradient.flat import Bucket, Layer

MOST_DENSE_STEPS = 3
"""DDP rebuilds its buckets at most once: before its second step, or with static_graph=True before its third."""


class DdpBuckets:
    """The flat gradient that DDP's buckets make, one after the other.

    settled      whether the buckets are those that stay. They are when they have changed once, and after
                 MOST_DENSE_STEPS, as DDP need not change them (find_unused_parameters=True). All ranks of a DDP have
                 the same buckets in the same step, so that all of them begin to compress in the same one
    dense_steps  how many steps it took to know that
    parameters   the `id` of each parameter that is in a bucket
    groups       of each bucket, the positions of its layers
    layers       all of them, in the order of the buckets; empty before the buckets are settled
    """

    def __init__(self) -> None:
        self.settled = False
        self.dense_steps = 0
        self.parameters: set[int] = set()
        self.layers: tuple[Layer, ...] = ()
        self.groups: list[range] = []
        self._cut: list[list[Tensor]] = []
        self._before: list[list[int]] = []

    def note(self, bucket: dist.GradBucket) -> None:
        """A bucket of a step before they are settled."""
        if bucket.index() == 0:
            self._cut = []
        mine = bucket.parameters()
        if self.parameters and not self.parameters.issuperset(map(id, mine)):
            raise UserError("comm_hook: two models have this hook; make one for each of them")
        self._cut.append(list(mine))
        if not bucket.is_last():
            return
        self.dense_steps += 1
        cut = [list(map(id, group)) for group in self._cut]
        self.parameters = {each for group in cut for each in group}
        self.settled = self.dense_steps == MOST_DENSE_STEPS or bool(self._before and cut != self._before)
        self._before = cut
        if self.settled:
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


def ddp_of(bucket: dist.GradBucket, hook: Callable[..., Any]) -> DistributedDataParallel | None:
    """The DistributedDataParallel that calls a hook with this bucket; None where it cannot be found.

    DDP passes a hook neither its process group nor its module. UserError if several models with these parameters are
    alive that have a hook and different groups, and none of them names this one.
    """
    mine = set(map(id, bucket.parameters()))
    everything = gc.get_objects()
    # Not by isinstance, which is slow here (DDP is an abstract class) and runs code of objects that stand for others.
    kinds = {kind for kind in set(map(type, everything)) if DistributedDataParallel in kind.__mro__}
    alive: list[Any] = [each for each in everything if type(each) in kinds]
    hooked = [each for each in alive if getattr(each, "_comm_hooks", ())]  # one whose making has failed has none
    found = [each for each in hooked if mine.issubset(map(id, each.module.parameters()))]
    named = [each for each in found if any(known is hook for known, _ in each._comm_hooks)]
    found = named or found
    if len({each.process_group for each in found}) > 1:
        raise UserError("comm_hook: several models under DDP share these parameters; pass comm_hook(process_group=)")
    return found[-1] if found else None
