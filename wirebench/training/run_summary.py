"""Lines at the end of a run: the bytes that each rank sent, and warnings of results that mislead."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from wirebench.collectives.execution.executor import RequestLog
from wirebench.comm.engine import Engine
from wirebench.config.loader import Config
from wirebench.data.base import labels_of, text_measures
from wirebench.data.base import unit_of as dataset_unit
from wirebench.telemetry.timeline import Timeline
from wirebench.telemetry.wire_stats import PerRankBytes, Traffic
from wirebench.training.replica import Replica


def gather(engine: Engine, traffic: Traffic) -> None:
    """Bring every rank's byte counts into `traffic.per_rank`; every rank calls it. Nothing happens without a step."""
    mine = traffic.own_ranks()
    if mine is None:
        return
    # Each rank fills its own column of a table of zeros, so that the sum over ranks is the table of all.
    tables = torch.zeros(len(engine.ranks), len(mine), engine.size, dtype=torch.float64)
    for table, rank, numbers in zip(tables, engine.ranks, zip(*mine, strict=True), strict=True):
        table[:, rank] = torch.tensor(numbers, dtype=torch.float64)
    traffic.per_rank = PerRankBytes(*engine.sum_over_ranks(list(tables)).tolist())


def setting(worker: Replica) -> dict[str, Any]:
    """How much is trained, and on how much: trainable parameters, images of both splits."""
    dataset = worker.shard.dataset
    samples = {"train": dataset.train_size, "test": dataset.test_size, "unit": dataset_unit(dataset)}
    if labels_of(dataset) > 1:
        samples["tokens"] = labels_of(dataset)
    if (digest := getattr(dataset, "digest", None)) is not None:
        samples["text"] = digest
    return {"parameters": worker.flat.numel, "samples": samples}


def evaluated(worker: Replica, final: Mapping[str, float]) -> dict[str, float | None]:
    """The record's `final`: what the last evaluation gave, and of a text what its loss means."""
    told = {key: final.get(key) for key in ("loss", "top1", "top5")}
    return told | text_measures(worker.shard.dataset, told["loss"])


def draw_requests(
    timeline: Timeline, ranks: Sequence[int], logs: Sequence[Sequence[RequestLog]], every_rank: bool
) -> None:
    """Draw a step's requests with their plans and bytes, for the process's first rank or for all its ranks."""
    for rank, log in list(zip(ranks, logs, strict=True))[: None if every_rank else 1]:
        for each in log:
            if each.begin:
                details = {"plan": each.plan, "payload_bytes": each.payload_bytes, "wire_bytes": each.wire_bytes}
                timeline.span("requests", each.kind, each.begin, each.begin + each.seconds, rank=rank, **details)


def warnings(given: Config, bounded_by: str, traffic: Traffic, steps: int, steps_per_epoch: int) -> list[str]:
    """One line for each result of a run of `steps` steps that does not mean what one may think.

    bounded_by  the option of the compressor that says how much is sent; '' where it has none
    """
    name, lines = given.compressor.name, []
    ratio, values = traffic.summary()["compression_ratio"]["wire"], traffic.values_sent
    change = f"; change compressor.{bounded_by}" if bounded_by else ""
    if name != "none" and traffic.steps and not traffic.requests:
        lines.append(f"{name} was given nothing to send in {traffic.steps} counted steps")
    elif name != "none" and traffic.steps and not values:
        lines.append(f"{name} sent no value of the gradient in {traffic.steps} counted steps{change}")
    elif name != "none" and ratio is not None and ratio <= 1:
        lines.append(f"{name} put no less on the wire than dense fp32 on a ring would: ratio wire {ratio:.3g}{change}")
    outer = given.scheduler.options if given.scheduler.name == "outer" else {}
    first = outer.get("every", 0) + outer.get("delay", 0)
    if 0 < steps < first:
        lines.append(
            f"scheduler.every: the first exchange is applied after {first} steps, and the run had {steps}; what is "
            "evaluated is the initial model"
        )
    epochs = len(given.compressor.warmup)
    if 0 < steps <= epochs * steps_per_epoch:
        begin = f"compressor.warmup: all {steps} steps were within its {epochs} x {steps_per_epoch}"
        lines.append(f"{begin}, so the ratios do not hold for the density after it")
    return lines


def last_step(given: Config, traffic: Traffic) -> dict[str, float | None]:
    """The last step's ratio, for the record's `compression_ratio`; {} without a warm-up.

    With one, the means of that table are taken over steps of several densities, and the last step's is the final one.
    """
    return {"wire_last_step": traffic.last_ratio} if given.compressor.warmup else {}
