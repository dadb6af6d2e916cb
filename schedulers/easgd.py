"""Elastic averaging: every worker keeps weights of its own, pulled towards a common centre that follows them all.

Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD", NeurIPS 2015. Here it is synchronous: all
layers form one message that overlaps with the forward and backward pass, as in Sync EASGD of You, Buluc and Demmel,
SC 2017 (arXiv 1708.02983). This is another optimiser, not another order of the same messages: `single` is the
schedule that the MG-WFBP paper calls SyncEASGD.
"""

from collections.abc import Sequence

from wirebench.exchange.easgd import Elastic
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Cost, LayerCost


class Easgd(Scheduler):
    """W_i <- W_i - eta g_i - (beta/P)(W_i - C), and the centre C <- C + (beta/P) sum_i (W_i - C), after every step.

    beta  P eta rho, how strongly workers and centre pull at each other, in (0, 1]; 0.9 in Zhang et al.

    eta g_i is the optimizer's own step, momentum included (You et al.'s Momentum EASGD). What is evaluated and saved as
    the model is the centre. Statistics of normalisation stay each rank's own, which evaluates its share of the test set
    with them. Gradients do not travel, so there is no compressor to go with it.
    """

    driver = Elastic

    def __init__(self, beta: float = 0.9) -> None:
        if not 0 < beta <= 1:
            raise ValueError(f"beta lies in (0, 1], got {beta}")
        self.beta = beta

    def partition(self, layers: Sequence[LayerCost], cost: Cost) -> list[range]:
        """A single group."""
        return [range(len(layers))]
