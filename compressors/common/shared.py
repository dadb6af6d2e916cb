"""Flat state that is the same on all ranks: what an optimizer in the compressor remembers of averages."""

import torch
from torch import Tensor

from wirebench.errors import UserError
from wirebench.gradient.flat import Bucket


def shared_slice(shared: dict[str, Tensor], name: str, bucket: Bucket) -> Tensor:
    """View of the vector `name` of `shared` at the places of `bucket`, shape (numel,); write to it in place.

    It is as long as the model's gradient, and zero at first. Raises UserError where a restored one has another length.
    """
    grad, numel = bucket.grad, bucket.model_numel
    flat = shared.get(name)
    if flat is None:
        flat = torch.zeros(numel, dtype=grad.dtype, device=grad.device)
    if flat.numel() != numel:
        raise UserError(
            f"compressor: the saved {name} covers {flat.numel()} elements, but this run's model has {numel}; "
            "resume with the same model"
        )
    shared[name] = flat = flat.to(grad)  # checkpoints are read to the CPU
    return flat[bucket.start : bucket.stop]
