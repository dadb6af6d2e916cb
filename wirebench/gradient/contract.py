"""The contract of a compressor, and the base of the suite's own."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from wirebench.errors import UserError
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.error_memory import RESIDUAL, ErrorMemory
from wirebench.gradient.flat import Bucket, Layer
from wirebench.gradient.metrics import Measures
from wirebench.gradient.requests import Request

Exchange = Generator[Request, Any, Tensor]
Keeps = Literal["exactly", "rounded", "partly", "sketched", "nothing"]

SHARED, OWN = "shared.", "own."


class Compressor(Protocol):
    """One rank's compressor; it lives as long as the run and owns its residuals.

    A plugin must have these members; that is enough where nothing but exchanges is asked for. The machinery works with
    a `Method`, which adds what else the suite can use, with defaults; a plugin that is none becomes one (`Bare`).

    owns_momentum  the method applies momentum itself, so the optimizer's own must be 0
    """

    @property
    def owns_momentum(self) -> bool:
        """Whether the method applies momentum itself."""
        ...

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """Yield one request per round; return the average over ranks, dense, shaped like `bucket.grad`.

        `bucket.grad` holds this rank's gradient and may be overwritten; the result may be `bucket.grad` itself. It must
        be bit-identical on all ranks. A NaN or infinity in any rank's gradient must reach every rank's result, so that
        all ranks stop at the same step. Buckets are exchanged in the same order on every rank, but several exchanges
        may be under way at once: a driver may leave one at a request and begin the next bucket's (`dear` does). So data
        of one bucket or step must be in a local variable, not in an attribute that has to outlast a `yield`.
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


class Method(Compressor):
    """Base of the suite's methods: a method without memory, and what the suite asks of any.

    inner          the compressor that this one is put around; None for one of its own
    owns_momentum  see Compressor
    keeps          what becomes of values that are not sent: they are kept for later `exactly`; or `rounded`, exact but
                   for rounding; or `partly`, the rest being lost and measured; or `sketched`, as a sum over ranks and
                   not element by element; or `nothing` is kept (dense and unbiased methods)
    dense_below    what its paper sends dense (the config's dense_below), used where the config does not say
    collective     the collective that its paper runs it on, used where the config names none; "": the engine's own
    whole_model    why it works only on the whole model in one bucket; "": on any bucket
    bounded_by     the option to change when the residual grows without bound, and its new value where that is not
                   plain: a warning quotes it; "" for a method without a residual
    fades          the residual decays by itself, so it is bounded and not watched
    unshared       why it cannot be a reduce-scatter (`scatter`); "" for a method that can
    uncaptured     why its own work cannot be replayed from CUDA graphs; "" for a method that runs the same operations
                   in every step where kernels work: lengths are fixed, and nothing differs from step to step but the
                   gradient, the answers and what tensors hold, which stay where they are in memory
    restored       how often its state was restored, and may lie elsewhere in memory since
    takes_turns    in each step one rank, a different one each time, works longer, and the others wait for it
    takes_over     whether it can be resumed by another number of ranks
    voters         ranks that it needs at least, unless there is one alone
    divides        ranks of a group that it works in; it has to divide the world size when a run begins; 0: no groups
    reads_weights  its exchange reads `bucket.param`; elsewhere a caller may leave that empty
    any_dtype      its exchange takes gradients of any floating dtype without conversion. Others get fp32: for a
                   bfloat16 gradient an fp32 copy, whose values travel in bfloat16 (Bucket.narrow); fp16 and fp64 are
                   refused
    makes_update   what it returns is the update itself (signs, say), not an average of gradients. It goes with plain
                   SGD, which subtracts it times the rate, and whose weight decay is then decoupled, as in AdamW
    scale_free     its result does not grow with the gradient, so that a loss's scale (GradScaler) must not reach it
    usual_step     a step with the requests that most steps of a run have: planners and benchmarks look at it
    density        share of the entries that it sends, which a warm-up sets; 0 where another option counts, None for a
                   method that has none
    memory         this rank's residuals; when the number of ranks changes, their part in the average is kept
    shared         state that is the same on all ranks
    own            this rank's state that means nothing in another world: dropped when the number of ranks changes
    measures       numbers that the method takes of its own exchange; filled only while `world.measuring`
    """

    inner: Compressor | None = None
    owns_momentum: bool = False
    keeps: Keeps = "nothing"
    dense_below: int = 0
    collective: str = ""
    whole_model: str = ""
    unshared: str = "it has no form in which each rank gets a share of the sum alone"
    bounded_by: str = ""
    fades: bool = False
    uncaptured: str = "it does not declare that every step runs the same operations"
    restored: int = 0
    takes_turns: bool = False
    takes_over: bool = True
    voters: int = 0
    divides: int = 0
    reads_weights: bool = False
    any_dtype: bool = False
    makes_update: bool = False
    scale_free: bool = False
    usual_step: int = 0
    density: Any = None  # a method that has one counts with it, and need not declare anew that it is a float

    def __init__(self) -> None:
        self.memory = ErrorMemory()
        self.shared: dict[str, Tensor] = {}
        self.own: dict[str, Tensor] = {}
        self.measures = Measures()

    def state_dict(self) -> dict[str, Tensor]:
        """This rank's memory, what all ranks share as `shared.NAME`, and its own as `own.NAME`."""
        shared = {f"{SHARED}{name}": tensor for name, tensor in self.shared.items()}
        return self.memory.state_dict() | shared | {f"{OWN}{name}": tensor for name, tensor in self.own.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self.restored += 1
        self.shared, self.own = _under(SHARED, state), _under(OWN, state)
        self.memory.load_state_dict(_memory(state))

    def prepare(self, device: torch.device) -> None:
        """Make ready what a step should not wait for, such as what is compiled. Called once for gradients on `device`,
        before the first exchange.
        """

    def scatter(self, whole: Tensor, world: ExchangeContext) -> Exchange:
        """A reduce-scatter: `whole`, (size * n,), is cut into a share for each rank; this rank's of the sum, fp32 (n,).

        It keeps nothing for later steps. UserError for a method with an `unshared` reason.
        """
        raise UserError(f"no reduce-scatter: {self.unshared}")

    def held_back(self, numel: int) -> Tensor | None:
        """The residual, shape (numel,), in the order of the flat gradient; None for a method without one."""
        return self.memory.state_dict().get(RESIDUAL)

    def unsent(self, numel: int) -> Tensor | None:
        """A tensor with about the residual's norm, for the residual watch; None for a method without a residual."""
        return self.held_back(numel)

    def magnitude(self) -> float | None:
        """Sum of the magnitudes of what this rank alone remembers and is lost with it: `memory`; None: not measurable.

        A method that keeps such a state elsewhere measures it here. `own` does not count: another world drops it.
        """
        return self.memory.magnitude()

    def sent_share(self, numel: int) -> float | None:
        """Share of a model's `numel` elements that is sent after a warm-up; None where no option says."""
        return self.density

    def compressed(self, layers: Sequence[Layer]) -> list[slice]:
        """The slices of the compressed layers in the flat gradient of `layers`, which are all layers of a model."""
        return [slice(layer.start, layer.stop) for layer in layers]

    def take_over(self, states: Sequence[Mapping[str, Tensor]], joins: bool = False, weight: float = 1.0) -> None:
        """Begin with the summed residuals of several ranks of an earlier world, so that no gradient is lost.

        states  state dictionaries of those ranks, at least one; shared state comes from the first
        joins   this rank is new: it takes the shared state only
        weight  the new world size over the earlier one: sums are divided by the new size, so the earlier world's
                residuals are multiplied by this
        """
        shared = {name: tensor for name, tensor in states[0].items() if name.startswith(SHARED)}
        self.load_state_dict(shared if joins else shared | _memory(states[0]))
        for state in states[1:]:
            self.memory.add(_memory(state))
        self.memory.scale(weight)


class Bare(Method):
    """A method made of a compressor that has what it must and no more; all else is as in a method without memory."""

    takes_over = False
    reads_weights = True  # it does not declare the opposite
    any_dtype = True

    def __init__(self, inner: Compressor) -> None:
        super().__init__()
        self.inner: Compressor = inner
        self.owns_momentum = inner.owns_momentum

    def exchange(self, bucket: Bucket, world: ExchangeContext) -> Exchange:
        """The compressor's."""
        return self.inner.exchange(bucket, world)

    def wire_bytes(self, numel: int, size: int) -> int:
        """The compressor's."""
        return self.inner.wire_bytes(numel, size)

    def state_dict(self) -> dict[str, Tensor]:
        """The compressor's."""
        return self.inner.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the compressor's state."""
        self.inner.load_state_dict(state)

    def magnitude(self) -> float | None:
        """None, not measurable, if it has a state, because the state's owner is unknown; else 0."""
        return None if self.inner.state_dict() else 0.0

    def take_over(self, states: Sequence[Mapping[str, Tensor]], joins: bool = False, weight: float = 1.0) -> None:
        """Refused, as `takes_over` says: what its residuals are is not known. Raises UserError."""
        raise UserError("compressor.name: this compressor cannot hand over what it holds: it has no take_over")


def _under(prefix: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): tensor.clone() for name, tensor in state.items() if name.startswith(prefix)}


def _memory(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.startswith((SHARED, OWN))}
