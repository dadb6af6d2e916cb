"""Memory between steps: flat vectors that cover the model's whole gradient and are read by slice.

Because a place in them is a place in the flat gradient, cutting the gradient into other buckets moves nothing.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from wirebench.errors import UserError
from wirebench.gradient.flat import Bucket

RESIDUAL, VELOCITY = "residual", "velocity"


class ErrorMemory:
    """Named memories, each as long as the flat gradient; zero at first.

    They are like the buckets that a method gets in dtype and device: fp32 also where the model's gradient is bfloat16
    (conformance.exchange), whose 8 bits would lose gradients that are small compared with the residual.

    `names` are the memories a method has, `residual` (what was not sent yet) by default. Each is allocated when it is
    first read, since only then the size of the model is known.
    """

    def __init__(self, *names: str) -> None:
        self.names = names or (RESIDUAL,)
        self._flat: dict[str, Tensor] = {}

    def slice(self, bucket: Bucket, name: str = RESIDUAL) -> Tensor:
        """View of the memory `name` at the places of `bucket`, shape (numel,); write to it in place.

        Raises UserError where a restored memory has another length than the gradient.
        """
        assert name in self.names, f"no memory {name!r} among {self.names}"
        if name not in self._flat:
            self._flat[name] = torch.zeros(bucket.model_numel, dtype=bucket.grad.dtype, device=bucket.grad.device)
        flat = self._flat[name]
        if flat.numel() != bucket.model_numel:
            raise UserError(
                f"compressor: the saved {name} covers {flat.numel()} elements, but this run compresses "
                f"{bucket.model_numel}; resume with the same model and compressor.dense_below"
            )
        if flat.device != bucket.grad.device or flat.dtype != bucket.grad.dtype:  # checkpoints are read to the CPU
            flat = self._flat[name] = flat.to(bucket.grad)
        return flat[bucket.start : bucket.stop]

    def state_dict(self) -> dict[str, Tensor]:
        """The memories by name; those that were not used yet are left out."""
        return dict(self._flat)

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore copies of what `state_dict` returned; a memory that it lacks starts at zero again."""
        unknown = sorted(set(state) - set(self.names))
        assert not unknown, f"no memory {unknown} among {self.names}"
        self._flat = {name: flat.clone() for name, flat in state.items()}

    def add(self, state: Mapping[str, Tensor]) -> None:
        """Add another rank's memories to these."""
        for name, flat in state.items():
            self._flat[name] = self._flat[name] + flat if name in self._flat else flat.clone()

    def magnitude(self) -> float:
        """The sum of the magnitudes of all that is remembered."""
        return float(sum(float(flat.abs().sum(dtype=torch.float64)) for flat in self._flat.values()))

    def scale(self, factor: float) -> None:
        """Multiply all memories, in place."""
        for flat in self._flat.values():
            flat.mul_(factor)
