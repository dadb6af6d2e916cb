"""Memory between steps: flat vectors that cover the model's whole gradient and are read by slice.

Because a place in them is a place in the flat gradient, cutting the gradient into other buckets moves nothing.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from wirebench.errors import UserError
from wirebench.layout import Bucket
from wirebench.world import World

RESIDUAL, VELOCITY = "residual", "velocity"


class ErrorMemory:
    """Named memories, each as long as the flat gradient and like it in dtype and device; zero at first.

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
        if flat.device != bucket.grad.device:  # checkpoints are read to the CPU
            flat = self._flat[name] = flat.to(bucket.grad.device)
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


class Feedback(ErrorMemory):
    """Error feedback with DGC's momentum correction: v, what was not sent yet, and u, the momentum of what comes in.

    Lin et al., "Deep Gradient Compression", ICLR 2018, section 3; gs-SGD (arXiv 2108.06004), Algorithm 1.
      u <- m u + g,  v <- v + u                      Nesterov: u <- m (u + g),  v <- v + u + g
      where it was sent: v <- 0, u <- 0 (momentum factor masking)
    Without masking of u, and with everything sent, this is dense momentum SGD; with it, plain SGD.

    momentum  m in [0, 1); 0: plain error feedback, no u
    clip      largest Euclidean norm of the gradient of P ranks: each clips its own to clip / sqrt(P); 0: off. It is of
              the whole gradient, which must come in one bucket; layers that a wrapper sends dense are no part of it
    masking   false: u is left as it is where v was sent
    """

    def __init__(self, momentum: float = 0.0, nesterov: bool = False, clip: float = 0.0, masking: bool = True) -> None:
        super().__init__(*([RESIDUAL, VELOCITY] if momentum else [RESIDUAL]))
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum lies in [0, 1), got {momentum}")
        if nesterov and not momentum:
            raise ValueError("nesterov needs a momentum above 0")
        if not masking and not momentum:
            raise ValueError("masking = false needs a momentum above 0: without one there is none to mask")
        if clip < 0:
            raise ValueError(f"clip is a norm, or 0 for none, got {clip}")
        self.momentum, self.nesterov, self.clip, self.masking = momentum, nesterov, clip, masking

    @property
    def whole_model(self) -> str:
        """As Method.whole_model, of the method that has this memory."""
        return "clip limits the norm of the whole gradient" if self.clip else ""

    def accumulate(self, bucket: Bucket, world: World) -> Tensor:
        """Take in the gradient of `bucket`, which is left as it is unless clipped; returns v, a view (numel,)."""
        grad, residual = bucket.grad, self.slice(bucket)
        if self.clip:
            self._clip(bucket, world.size)
        if not self.momentum:
            return residual.add_(grad)
        velocity = self.slice(bucket, VELOCITY)
        if self.nesterov:
            velocity.add_(grad).mul_(self.momentum)
            residual.add_(grad)
        else:
            torch.add(grad, velocity, alpha=self.momentum, out=velocity)
        return residual.add_(velocity)

    def sent(self, bucket: Bucket, index: Tensor, kept: Tensor | None = None) -> None:
        """The places `index` (int64) of v were sent; `kept` is what rounding left of them, if anything."""
        residual = self.slice(bucket)
        if kept is None:
            residual.index_fill_(0, index, 0)
        else:
            residual.index_copy_(0, index, kept)
        if self.momentum and self.masking:
            self.slice(bucket, VELOCITY).index_fill_(0, index, 0)

    def sent_all(self, bucket: Bucket) -> None:
        """All of v was sent."""
        self.slice(bucket).zero_()
        if self.momentum and self.masking:
            self.slice(bucket, VELOCITY).zero_()

    def _clip(self, bucket: Bucket, size: int) -> None:
        """Scale the gradient down to the limit of one of `size` ranks."""
        assert len(bucket.layers) == len(bucket.model or bucket.layers), "clip needs the whole model in one bucket"
        limit = self.clip / size**0.5
        norm = torch.linalg.vector_norm(bucket.grad)
        # A tensor, so that the host need not wait for a GPU. What is not finite stays alone, or it would not be chosen.
        scale = (limit / norm).clamp(max=1.0)
        bucket.grad.mul_(torch.where(norm.isfinite(), scale, torch.ones_like(scale)))
