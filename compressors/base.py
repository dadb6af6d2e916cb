"""The contract of a gradient compressor: one generator that asks for what must be agreed on, round by round."""

from collections.abc import Generator, Mapping
from typing import Any, ClassVar, Protocol

from torch import Tensor

from wirebench.layout import Bucket
from wirebench.requests import Request
from wirebench.world import World

Exchange = Generator[Request, Any, Tensor]


class Compressor(Protocol):
    """One rank's compressor; it lives as long as the run and owns its residuals.

    owns_momentum  the method applies momentum itself, so the optimizer's own must be 0
    """

    @property
    def owns_momentum(self) -> bool:
        """See above."""
        ...

    def exchange(self, bucket: Bucket, world: World) -> Exchange:
        """Yield one request per round; return the average over ranks, dense, shaped like `bucket.grad`.

        `bucket.grad` holds this rank's gradient and may be overwritten; the result may be `bucket.grad` itself. It must
        be bit-identical on all ranks. A NaN or infinity in any rank's gradient must reach every rank's result, so that
        all ranks stop at the same step. Buckets are exchanged in the same order on every rank.
        """
        ...

    def wire_bytes(self, numel: int, size: int) -> int:
        """Estimated bytes that one of `size` ranks hands over for a bucket of `numel` elements; for planning only."""
        ...

    def state_dict(self) -> dict[str, Tensor]:
        """Tensors that a resumed run needs; empty for a method without memory."""
        ...

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        ...


class Stateless:
    """Base of the methods that remember nothing between steps."""

    owns_momentum: ClassVar[bool] = False

    def state_dict(self) -> dict[str, Tensor]:
        """Nothing to save."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Accept the empty state only."""
        assert not state, f"{type(self).__name__} has no state, got {sorted(state)}"
