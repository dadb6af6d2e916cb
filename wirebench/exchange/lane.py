"""One rank's way from local to averaged gradients: flat gradient, buckets, compressor, executor of its requests."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.exchange.driver import Steps, advance
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import Bucket, FlatGradient
from wirebench.gradient.weight_decay import Decay


class Lane:
    """Rank `rank`'s way from local to averaged gradients.

    flat           the model's parameters and gradient, in backward order
    server         the executor of the compressor's requests
    seed           the run's, which all ranks share
    compressing    opens around the compressor's own work, e.g. a clock's phase
    decay          weight decay that is added to the gradient before it is compressed; None: the optimizer applies it
    measure_every  steps between exchanges that are measured (diagnostics.py); 0: none is
    clears         gradients are forgotten when a step begins; False where a loop of the user's own does that
    given          the flat gradient of a measured step, as it was before its exchange
    """

    def __init__(
        self,
        rank: int,
        flat: FlatGradient,
        compressor: Method,
        server: RequestExecutor,
        seed: int,
        compressing: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.flat, self.compressor, self.server, self.compressing = flat, compressor, server, compressing
        self.world = ExchangeContext(rank, server.communicator.size, seed=seed)
        self.decay: Decay | None = None
        self.measure_every = 0
        self.clears = True
        self.given = flat.grad.new_empty(0)
        self.buckets: list[Bucket] = []
        self._ready = [False] * len(flat.layers)

    def set_buckets(self, groups: Sequence[range]) -> None:
        """Cut the flat gradient into buckets, one per group of layers; any state of the compressor stays valid."""
        covered = [position for group in groups for position in group]
        assert covered == list(range(len(self.flat.layers))), f"groups must cover the layers in order, got {groups}"
        self.buckets = [self.flat.bucket(index, group) for index, group in enumerate(groups)]

    @property
    def state_share(self) -> float:
        """Memory that the compressor keeps between steps, as a multiple of the gradient's."""
        return sum(tensor.nbytes for tensor in self.compressor.state_dict().values()) / self.flat.grad.nbytes

    @property
    def has_gradients(self) -> bool:
        """Whether a layer's gradient has come in this step."""
        return any(self._ready)

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before."""
        measuring = bool(self.measure_every) and step % self.measure_every == 0
        self.world = ExchangeContext(self.world.rank, self.world.size, step, epoch, self.world.seed, measuring)
        if measuring:
            self.given = torch.empty_like(self.flat.grad)
        self._ready = [False] * len(self._ready)
        if self.clears:
            for parameter in self.flat.parameters:
                parameter.grad = None

    def attach(self, on_ready: Callable[[int], None]) -> list[Callable[[], None]]:
        """Hook every parameter: its gradient goes into the flat one, then `on_ready(layer)`. Returns the detachers."""

        def hook_of(position: int) -> Callable[[nn.Parameter], None]:
            def hook(parameter: nn.Parameter) -> None:
                self.take(position)
                on_ready(position)

            return hook

        parameters = enumerate(self.flat.parameters)
        return [p.register_post_accumulate_grad_hook(hook_of(i)).remove for i, p in parameters]

    def take(self, position: int) -> None:
        """The gradient of the layer at `position` has come: it is in the flat gradient from now on."""
        parameter, view = self.flat.parameters[position], self.flat.views[position]
        # In the first micro-batch autograd makes a fresh tensor, since `.grad` was None; it is copied into the flat
        # gradient, and later micro-batches then add to that view in place.
        assert parameter.grad is not None
        if parameter.grad is not view:
            view.copy_(parameter.grad)
            parameter.grad = view
        self._ready[position] = True

    def fill_unused(self) -> list[int]:
        """Zero the gradients of layers that took no part in this step, and return these layers.

        Other ranks may have used them, so they are exchanged all the same.
        """
        unused = [position for position, ready in enumerate(self._ready) if not ready]
        for position in unused:
            view = self.flat.views[position]
            view.zero_()
            self.flat.parameters[position].grad = view
        return unused

    def exchange(self, bucket: Bucket) -> Steps:
        """Average one bucket over ranks, in place; yields a handle per round (see driver.run), returns the average."""
        if self.decay is not None:
            with self.compressing(), torch.no_grad():
                self.decay.join(bucket)
        if self.world.measuring:
            self.given[bucket.start : bucket.stop] = bucket.grad
        exchange = conformance.exchange(self.compressor, bucket, self.world)
        steps = advance(exchange, self.server.serve, self.compressing)
        average: Tensor = yield from steps
        # A compressor may return the bucket's own gradient, or a tensor of its own.
        if average.data_ptr() != bucket.grad.data_ptr():
            bucket.grad.copy_(average)
        return bucket.grad
