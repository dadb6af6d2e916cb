"""What there is to say at the end of a run: what all ranks sent, and warnings of results that mislead."""

import torch

from wirebench.comm.engine import Engine
from wirebench.config.loader import Config
from wirebench.telemetry.wire_stats import OfRanks, Traffic


def gather(engine: Engine, traffic: Traffic) -> None:
    """Bring what every rank sent into `traffic.of_ranks`; every rank calls it. Nothing happens without a step."""
    mine = traffic.of_mine()
    if mine is None:
        return
    tables = torch.zeros(len(engine.ranks), len(mine), engine.size, dtype=torch.float64)
    for table, rank, numbers in zip(tables, engine.ranks, zip(*mine, strict=True), strict=True):
        table[:, rank] = torch.tensor(numbers, dtype=torch.float64)
    traffic.of_ranks = OfRanks(*engine.sum_over_ranks(list(tables)).tolist())


def warnings(given: Config, bounded_by: str, traffic: Traffic, steps: int, steps_per_epoch: int) -> list[str]:
    """Of a run of `steps` steps: results that do not mean what one may think.

    bounded_by  the option of the compressor that says how much is sent; '' where it has none
    """
    name, found = given.compressor.name, []
    ratio, values = traffic.summary()["compression_ratio"]["wire"], traffic.values_sent
    change = f"; change compressor.{bounded_by}" if bounded_by else ""
    if name != "none" and traffic.steps and not values:
        found.append(f"{name} sent no value of the gradient in {traffic.steps} counted steps{change}")
    elif name != "none" and ratio is not None and ratio <= 1:
        found.append(f"{name} put no less on the wire than dense fp32 on a ring would: ratio wire {ratio:.3g}{change}")
    epochs = len(given.compressor.warmup)
    if 0 < steps <= epochs * steps_per_epoch:
        begin = f"compressor.warmup: all {steps} steps were within its {epochs} x {steps_per_epoch}"
        found.append(f"{begin}, so the ratios are not those of the density after it")
    return found


def last_step(given: Config, traffic: Traffic) -> dict[str, float | None]:
    """For the record's `compression_ratio`, where a warm-up makes its means those of several densities."""
    return {"wire_last_step": traffic.last_ratio} if given.compressor.warmup else {}
