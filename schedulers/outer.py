"""Local steps with an outer optimizer: workers train alone, and now and then exchange how far they have come.

- DiLoCo: Douillard et al. 2023, arXiv 2311.08105. SGD with Nesterov's momentum, 0.7 and 0.9, on the mean difference.
- Streaming DiLoCo: Douillard et al. 2025, arXiv 2501.18512. Fragments in turn, each applied steps after it was sent.
- SparseLoCo: Sarfi et al. 2025, arXiv 2508.15706: `compressor.name=chunk_topk`, rate 1, no momentum.
- Local SGD: Stich 2019, arXiv 1805.09767: rate 1, no momentum.
"""

from collections.abc import Sequence

from wirebench.exchange.outer import OuterSteps
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost


class Outer(Scheduler):
    """After every `every` steps: D_i = anchor - weights_i, V <- m V + mean(D), anchor <- anchor - rate (mean(D) + m V).

    every      steps between two exchanges of a fragment
    rate       learning rate of the outer optimizer
    momentum   m; 0: SGD without momentum
    nesterov   False: anchor <- anchor - rate V
    fragments  parts of about the same size that are exchanged in turn, `every` / fragments steps apart
    delay      steps between a fragment's exchange and its application: so long it may travel beside the training
    keep       of the worker's own weights when an exchange is applied: weights <- (1 - keep) anchor + keep weights

    What is evaluated and saved as the model is the anchor. Statistics of normalisation stay each rank's own, which
    evaluates its share of the test set with them. Any compressor goes with it that applies no momentum of its own; its
    residual waits for the next exchange, and what it does in turn (a factor, a leader) it does from one exchange to the
    next: its options that are numbers of steps are numbers of exchanges. A wish to stop waits for an exchange, too,
    where workers are processes; a launcher that ends its ranks sooner leaves the last checkpoint.

    Memory: the anchor, V and the differences under way, 3 d, beside the compressor's; a checkpoint has them once for
    each rank.
    """

    driver = OuterSteps

    def __init__(
        self, every: int = 30, rate: float = 0.7, momentum: float = 0.9, nesterov: bool = True, fragments: int = 1,
        delay: int = 0, keep: float = 0.0,
    ) -> None:  # fmt: skip
        if every < 1:
            raise ValueError(f"every: needs at least 1, got {every}")
        if not 1 <= fragments <= every:
            raise ValueError(f"fragments: needs 1 to every = {every}, got {fragments}")
        if not 0 <= delay < every:
            raise ValueError(f"delay: needs 0 to every - 1 = {every - 1}, got {delay}")
        if not rate > 0:
            raise ValueError(f"rate: needs more than 0, got {rate:g}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum lies in [0, 1), got {momentum:g}")
        if nesterov and not momentum:
            raise ValueError("nesterov: needs momentum above 0; set nesterov = false")
        if not 0 <= keep < 1:
            raise ValueError(f"keep lies in [0, 1), got {keep:g}")
        self.every, self.rate, self.momentum, self.nesterov = every, rate, momentum, nesterov
        self.fragments, self.delay, self.keep = fragments, delay, keep

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """`fragments` groups of about the same number of elements; fewer where there are fewer layers."""
        count = min(self.fragments, len(layers))
        total = sum(layer.numel for layer in layers)
        groups: list[range] = []
        begin = done = 0
        for place, layer in enumerate(layers):
            done += layer.numel
            left = len(layers) - place - 1
            full = done >= (len(groups) + 1) * total / count or left == count - len(groups) - 1
            if full and len(groups) < count - 1:
                groups.append(range(begin, place + 1))
                begin = place + 1
        return [*groups, range(begin, len(layers))]

    def starts(self, fragment: int, step: int) -> bool:
        """Whether the fragment is sent after this step, the first being 0."""
        return (step + 1 - fragment * self.every // self.fragments) % self.every == 0 and step + 1 >= self.every
