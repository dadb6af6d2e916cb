"""Check that all ranks have the same bits: averages that differ between ranks would otherwise go unnoticed.

One checksum of each rank's vector, and one small sum over ranks.
"""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from wirebench.comm.base import Communicator, as_bytes
from wirebench.config.loader import Config
from wirebench.errors import UserError
from wirebench.exchange.finite import all_finite
from wirebench.exchange.lane import Lane
from wirebench.gradient.conformance import broken

NOT_FINITE = -1


def check_averages(lanes: Sequence[Lane], results: Sequence[Tensor], when: str) -> None:
    """UserError if the ranks' averaged gradients differ; `results` belong to `lanes`, in order. Every rank calls it."""
    rank = first_to_differ([lane.server.communicator for lane in lanes], results)
    if rank:
        text = f"{when}: the ranks' averages differ: rank {rank}'s is not rank 0's; they must be equal to the bit"
        raise broken(lanes[0].compressor, text)


def check_parameters(
    communicators: Sequence[Communicator], parameters: Sequence[Tensor], step: int, given: Config
) -> None:
    """UserError where the ranks' models differ after `step`; `parameters` belong to `communicators`, in order.

    Every rank calls it, where the models are meant to be alike (see Driver.evaluation_view).
    """
    rank = first_to_differ(communicators, parameters)
    if rank:
        raise UserError(
            f"step {step}: the ranks' parameters differ: rank {rank} has other ones than rank 0, so compressor.name = "
            f"{given.compressor.name} or scheduler.name = {given.scheduler.name} did not average alike"
        )


def first_to_differ(communicators: Sequence[Communicator], vectors: Sequence[Tensor]) -> int:
    """The first rank whose vector has other bits than rank 0's; 0 if all have the same.

    vectors  one-dimensional, one for each of `communicators`, in order
    Every rank calls it. It is also 0 if a vector is not finite: the guard reports that, and NaNs have many bit
    patterns.
    """
    rows = []
    for communicator, vector in zip(communicators, vectors, strict=True):
        row = torch.zeros(communicator.size, dtype=torch.int64)
        row[communicator.rank] = checksum(vector)
        rows.append(communicator.all_reduce(row))
    totals = [handle.wait() for handle in rows]
    sums: list[int] = totals[0].tolist()
    if NOT_FINITE in sums:
        return 0
    return next((rank for rank, each in enumerate(sums) if each != sums[0]), 0)


def checksum(vector: Tensor) -> int:
    """CRC-32 of the tensor's bytes; NOT_FINITE where it has a NaN or an infinity."""
    if not all_finite(vector):
        return NOT_FINITE
    return zlib.crc32(as_bytes(vector.detach()).cpu().numpy().data)
