"""Steps that differ: random jitter and stragglers, and the quantiles of the resulting step times.

A step waits for its slowest worker. A worker's computation takes exp(s z) times as long as in the trace, z being
standard normal, and a straggler's `slowdown` times that. The slowest of P workers needs no P samples: the largest of n
standard normal numbers is sampled at once, since U^(1/n) is distributed as the largest of n uniform ones. So 100,000
workers take as long to sample as two.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from wirebench.exchange.scheduler import Scheduler
from wirebench.simulation.simulator import Factors, Simulated, Simulator

TRIALS = 1000
MEDIAN, LATE = 0.5, 0.99


@dataclass(frozen=True)
class Disturbance:
    """Causes of differences between steps.

    compute     deviation of the logarithm of a worker's computing time, from step to step and worker to worker
    messages    the same deviation for a step's exchange, all of whose messages are late together
    stragglers  share of the workers that are slow in a step, others in each
    slowdown    times as long as others a straggler computes
    """

    compute: float = 0.0
    messages: float = 0.0
    stragglers: float = 0.0
    slowdown: float = 1.0

    def __post_init__(self) -> None:
        if not (0 <= self.compute <= 10 and 0 <= self.messages <= 10 and 0 <= self.stragglers <= 1 <= self.slowdown):
            raise ValueError(f"needs deviations from 0 to 10, a share from 0 to 1 and a slowdown from 1 on, got {self}")

    def slowest(self, workers: int, trials: int, drawn: np.random.Generator) -> NDArray[np.float64]:
        """For each trial: the computing time of the slowest of the workers, divided by the trace's."""
        slow = drawn.binomial(workers, self.stragglers, trials)
        usual, late = (
            np.where(count > 0, np.exp(self.compute * _largest(count, drawn)), 0.0) for count in (workers - slow, slow)
        )
        return np.maximum(usual, self.slowdown * late)


def quantiles(
    simulator: Simulator, found: Simulated, scheduler: Scheduler, disturbance: Disturbance, seed: int = 0
) -> tuple[float, float]:
    """Median and 99th percentile of TRIALS steps of a simulated composition, in seconds; the same for the same seed."""
    drawn = np.random.default_rng(seed)
    computing = disturbance.slowest(simulator.pricer.topology.size, TRIALS, drawn)
    exchange = np.exp(disturbance.messages * drawn.standard_normal(TRIALS))
    factors = (Factors(late, 1.0, slow) for slow, late in zip(computing.tolist(), exchange.tolist(), strict=True))
    steps = [simulator.stretched(found, scheduler, each).seconds for each in factors]
    median, late = np.quantile(steps, [MEDIAN, LATE]).tolist()
    return median, late


def _largest(counts: NDArray[np.int64], drawn: np.random.Generator) -> NDArray[np.float64]:
    """The largest of `count` standard normal numbers, for each of `counts`; meaningless for a count of 0.

    The upper tail is computed as such: 1 - U^(1/n) would have no digits left for large n.
    """
    tail = -np.expm1(np.log(1.0 - drawn.random(len(counts))) / np.maximum(counts, 1))
    largest: NDArray[np.float64] = -ndtri(tail)
    return largest
