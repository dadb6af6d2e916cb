"""One rank's way from local to averaged gradients: flat gradient, buckets, compressor, executor of its requests."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from wirebench.collectives.execution.executor import RequestExecutor
from wirebench.exchange.advance import Steps, advance
from wirebench.exchange.graphs import Graphs
from wirebench.gradient import conformance
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.contract import Method
from wirebench.gradient.flat import Bucket, FlatGradient
from wirebench.gradient.weight_decay import Decay

LARGE = 16_384
"""Elements from which on a gradient is copied at once: 64 kB."""


class Lane:
    """Rank `rank`'s way from local to averaged gradients.

    flat           the model's parameters and gradient, in backward order
    server         the executor of the compressor's requests
    seed           the run's, which all ranks share
    compressing    opens around the compressor's own work, e.g. a clock's phase
    decay          weight decay that is added to the gradient before it is compressed; None: the optimizer applies it
    measure_every  steps between exchanges that are measured (diagnostics.py); 0: none is
    clears         gradients are forgotten when a step begins; False where a loop of the user's own does that
    on_arrival     called before a gradient is taken, of the first layer at least: a step may begin with that
    given          the flat gradient of a measured step, as it was before its exchange
    graphs         replays the compressor's own work from CUDA graphs; None: it runs as usual
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
        for each in (compressor, server):
            each.prepare(flat.grad.device)
        self.world = ExchangeContext(rank, server.communicator.size, seed=seed)
        self.decay: Decay | None = None
        self.graphs: Graphs | None = None
        self.measure_every = 0
        self.clears = True
        self.given = flat.grad.new_empty(0)
        self.buckets: list[Bucket] = []
        self.on_arrival: Callable[[], None] = lambda: None
        self._ready = [False] * len(flat.layers)
        self._places = {id(parameter): position for position, parameter in enumerate(flat.parameters)}
        self._came: list[Tensor] = []
        """Parameters whose gradients have come and are not in the flat one yet."""
        self._last: set[int] = set()
        self._heard: set[int] = set()
        """Layers with a hook in Python."""
        self._on_ready: Callable[[Sequence[int]], None] = lambda layers: None
        self._detach: list[Callable[[], None]] = []

    def set_buckets(self, groups: Sequence[range]) -> None:
        """Cut the flat gradient into buckets, one per group of layers; any state of the compressor stays valid."""
        covered = [position for group in groups for position in group]
        assert covered == list(range(len(self.flat.layers))), f"groups must cover the layers in order, got {groups}"
        self.buckets = [self.flat.bucket(index, group) for index, group in enumerate(groups)]
        self._last = {group.stop - 1 for group in groups}
        if self.graphs is not None:
            self.graphs.forget()
        if self._detach:
            self.detach()
            self.attach(self._on_ready)

    @property
    def state_share(self) -> float:
        """Memory that the compressor keeps between steps, as a multiple of the gradient's."""
        return sum(tensor.nbytes for tensor in self.compressor.state_dict().values()) / self.flat.grad.nbytes

    @property
    def has_gradients(self) -> bool:
        """Whether a layer's gradient has come in this step."""
        return any(self._ready) or bool(self._came)

    @property
    def is_complete(self) -> bool:
        """Whether each layer's gradient has come in this step; takes those that have."""
        self.collect()
        return all(self._ready)

    @property
    def has_news(self) -> bool:
        """Whether there are gradients that are not in the flat one yet, of whatever origin."""
        grads = ((position, parameter.grad) for position, parameter in enumerate(self.flat.parameters))
        return bool(self._came) or any(g is not None and not self.flat.holds(position, g) for position, g in grads)

    def begin(self, step: int, epoch: int) -> None:
        """Forget the gradients of the step before."""
        measuring = bool(self.measure_every) and step % self.measure_every == 0
        self.world = ExchangeContext(self.world.rank, self.world.size, step, epoch, self.world.seed, measuring)
        if measuring:
            self.given = torch.zeros_like(self.flat.grad)  # buckets do not cover gaps between them
        self._ready = [False] * len(self._ready)
        if self.clears:
            self._came.clear()
            for parameter in self.flat.parameters:
                parameter.grad = None

    def attach(self, on_ready: Callable[[Sequence[int]], None]) -> None:
        """Hook every parameter: `on_ready(layers)` gets the layers whose gradients have come into the flat gradient.

        A hook in Python takes longer than the copy of a small gradient. So small gradients are only noted, and copied
        into the flat gradient by the next hook in Python. Three kinds of gradients have such a hook: a large one, whose
        copy is cheap only while it is in the processor's cache; the first of all; and the last of a bucket, which
        usually completes the bucket.
        """
        self._on_ready = on_ready
        self._heard = {0, *self._last, *(i for i, layer in enumerate(self.flat.layers) if layer.numel >= LARGE)}
        self._detach = [
            p.register_post_accumulate_grad_hook(self._arrives if i in self._heard else self._came.append).remove
            for i, p in enumerate(self.flat.parameters)
        ]

    def hear(self, position: int) -> None:
        """With this layer's gradient a bucket was complete, in spite of the order: take it at once from now on."""
        if position not in self._heard:
            self._heard.add(position)
            self._detach[position]()
            hook = self.flat.parameters[position].register_post_accumulate_grad_hook(self._arrives)
            self._detach[position] = hook.remove

    def detach(self) -> None:
        """Remove the hooks."""
        for detach in self._detach:
            detach()
        self._detach = []

    def adopt(self) -> None:
        """Take the gradients that are there: the lane was made after their backward pass."""
        self._came += [parameter for parameter in self.flat.parameters if parameter.grad is not None]
        self.collect()

    def collect(self) -> None:
        """Take what has come since the last call: it is in the flat gradient from now on."""
        came = [(self._places[id(p)], p, grad) for p in self._came if (grad := p.grad) is not None]
        self._came.clear()
        # In the first micro-batch autograd makes a fresh tensor, since `.grad` was None; it is copied into the flat
        # gradient, and later micro-batches then add to that view in place.
        flat = self.flat
        fresh = [(flat.view(place), p, grad) for place, p, grad in came if not flat.holds(place, grad)]
        if fresh:
            with torch.no_grad():
                torch._foreach_copy_([view for view, _, _ in fresh], [grad for _, _, grad in fresh])
        for view, parameter, _ in fresh:
            parameter.grad = view
        layers = [position for position, _, _ in came]
        for position in layers:
            self._ready[position] = True
        if layers:
            self._on_ready(layers)

    def _arrives(self, parameter: Tensor) -> None:
        self.on_arrival()
        self._came.append(parameter)
        self.collect()

    def fill_unused(self) -> list[int]:
        """Give a gradient to each layer that got none from this step's backward pass; returns the layers without one.

        A gradient that the loop itself has set is taken. Otherwise it is zero, and is exchanged, too, because other
        ranks may have used the layer.
        """
        self.collect()
        waiting = [position for position, ready in enumerate(self._ready) if not ready]
        unused = []
        for position in waiting:
            parameter, view = self.flat.parameters[position], self.flat.view(position)
            if parameter.grad is None:
                view.zero_()
                parameter.grad = view
                unused.append(position)
            elif not self.flat.holds(position, parameter.grad):
                self._came.append(parameter)
            elif not bool(view.any()):
                unused.append(position)
            self._ready[position] = True
        self.collect()
        return unused

    def exchange(self, bucket: Bucket) -> Steps:
        """Average one bucket over ranks, in place; yields a handle per round (see advance.run), returns the average."""
        if self.decay is not None or self.compressor.reads_weights:
            bucket = self.flat.with_weights(bucket)
        if self.decay is not None:
            with self.compressing(), torch.no_grad():
                self.decay.join(bucket)
        if self.world.measuring:
            self.given[bucket.start : bucket.stop] = bucket.grad
        if self.graphs is None:
            exchange = conformance.exchange(self.compressor, bucket, self.world)
        else:
            exchange = self.graphs.exchange(bucket, self.world)
        steps = advance(exchange, self.server.serve, self.compressing)
        average: Tensor = yield from steps
        # A compressor may return the bucket's own gradient, or a tensor of its own.
        if average.data_ptr() != bucket.grad.data_ptr():
            bucket.grad.copy_(average)
        for gap in self.flat.gaps:
            if bucket.start < gap.start < bucket.stop:
                self.flat.grad[gap] = 0
        return bucket.grad
