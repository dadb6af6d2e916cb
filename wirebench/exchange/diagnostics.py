"""How well the exchange of a step did: its error, its residual, and whether it sent the right entries.

A reading costs two dense sums over ranks and a selection, so it is taken every N steps only (output.health_every), and
its steps are left out of every throughput. All ranks read at the same steps and get the same numbers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wirebench.exchange.lane import Lane
from wirebench.gradient.metrics import values

SPARSE = 0.5
"""Above this share of non-zero entries the overlap with the largest ones means nothing."""


class Health:
    """Takes the readings of the lanes of this process; keeps count, sum and last value of each number."""

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self._totals: dict[str, tuple[int, float, float]] = {}

    @torch.no_grad()
    def read(self, step: int) -> dict[str, float]:
        """The reading of `step`; call it after the exchange and before the update. {} where it is not measured (Lane).

        With g the mean gradient over ranks as it was given, G the average as it was applied, e a rank's residual after
        the step, and m = G + mean e what all ranks had to send (g, for a method that shows no residual):
          health/compression_error  ||g - G|| / ||g||
          health/residual_norm      root of the mean over ranks of ||e||^2
          health/residual_share     ||mean e|| / ||m||
          health/density            share of the entries of G that are not 0
          health/topk_overlap       share of them that are among the equally many largest of m
        (the last two of the compressed tensors only), and compressor/NAME for every number in the method's `measures`.
        Of a method that returns updates, which are no average of gradients, only the density and these.
        Every rank calls it, and all get the same numbers.
        """
        if not self.lanes or not self.lanes[0].world.measuring:
            return {}
        first = self.lanes[0]
        reading = _of_update(first) if first.compressor.makes_update else self._of_average(first)
        reading |= self._own()
        self._add(reading)
        return reading

    def _of_average(self, first: Lane) -> dict[str, float]:
        given = self._mean([lane.given for lane in self.lanes])
        applied = first.flat.grad
        reading = {"health/compression_error": _share(given - applied, given)}
        residuals = [_residual(lane) for lane in self.lanes]
        offered = given
        if all(residual is not None for residual in residuals):
            squares = self._mean([torch.sum(r.double() ** 2).view(1) for r in residuals if r is not None])
            waiting = self._mean([r.clone() for r in residuals if r is not None])
            offered = applied + waiting
            reading["health/residual_norm"] = squares.sqrt().item()
            reading["health/residual_share"] = _share(waiting, offered)
        return reading | _selection(first, applied, offered)

    def summary(self) -> dict[str, Any] | None:
        """Last value and mean of every number; None without a reading."""
        totals = sorted(self._totals.items())
        return {name: {"last": last, "mean": total / count} for name, (count, total, last) in totals} or None

    def state_dict(self) -> dict[str, Any]:
        """The sums of the readings so far, as JSON."""
        return {"totals": {name: list(kept) for name, kept in self._totals.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned, now or in a version that kept every reading."""
        self._totals = {name: (count, total, last) for name, (count, total, last) in state.get("totals", {}).items()}
        for _, reading in state.get("history", []):
            self._add(reading)

    def _add(self, reading: Mapping[str, float]) -> None:
        for name, value in reading.items():
            count, total, _ = self._totals.get(name, (0, 0.0, 0.0))
            self._totals[name] = (count + 1, total + value, value)

    def _own(self) -> dict[str, float]:
        """The numbers in the methods' `measures`, over all ranks and buckets."""
        taken = [lane.compressor.measures for lane in self.lanes]
        names = taken[0].names
        if not names:
            return {}
        mean = self._mean([measures.take() for measures in taken])
        return {f"compressor/{name}": value for name, value in values(names, mean).items()}

    def _mean(self, tensors: Sequence[Tensor]) -> Tensor:
        """Mean over all ranks; the tensors, one for each lane, are consumed."""
        pairs = zip(self.lanes, tensors, strict=True)
        handles = [lane.server.communicator.all_reduce(tensor) for lane, tensor in pairs]
        totals = [handle.wait() for handle in handles]
        return totals[0] / self.lanes[0].world.size


def held_back(lane: Lane) -> Tensor | None:
    """A tensor with about the norm of a rank's residual, for the residual watch; None for a method without one."""
    return _here(lane, lane.compressor.unsent(lane.flat.grad.numel()))


def _residual(lane: Lane) -> Tensor | None:
    """The residual, shape (numel,), in the order of the flat gradient; None for a method without one."""
    return _here(lane, lane.compressor.held_back(lane.flat.grad.numel()))


def _here(lane: Lane, held: Tensor | None) -> Tensor | None:
    return None if held is None else held.to(lane.flat.grad.device)


def _selection(lane: Lane, applied: Tensor, offered: Tensor) -> dict[str, float]:
    """Density of the applied average, and the overlap of its entries with the largest of what was offered."""
    places = lane.compressor.compressed(lane.flat.layers)
    if not places:
        return {}
    sent = torch.cat([applied[place] for place in places]) != 0
    count, numel = int(sent.count_nonzero()), sent.numel()
    reading = {"health/density": count / numel}
    if 0 < count <= SPARSE * numel:
        magnitudes = torch.cat([offered[place] for place in places]).abs_()
        largest = torch.topk(magnitudes, count, sorted=False).indices
        reading["health/topk_overlap"] = int(sent[largest].count_nonzero()) / count
    return reading


def _of_update(lane: Lane) -> dict[str, float]:
    """How much of an update is not 0."""
    applied = lane.flat.grad
    return {name: value for name, value in _selection(lane, applied, applied).items() if name == "health/density"}


def _share(part: Tensor, whole: Tensor) -> float:
    norm = torch.linalg.vector_norm(whole).item()
    return torch.linalg.vector_norm(part).item() / norm if norm else 0.0
