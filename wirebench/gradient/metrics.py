"""Numbers that a method takes of its own exchange: how much was chosen, how much was lost, how good an estimate was.

They cost time, so a method takes them only while `world.measuring` is true. They are kept as sums, so that the numbers
of a step's buckets and of all ranks can be combined into one number each.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

Number = float | Tensor


class Measures:
    """Named numbers of one rank; every rank takes the same names in the same order."""

    def __init__(self) -> None:
        self._parts: dict[str, Number] = {}
        self._wholes: dict[str, Number] = {}

    def total(self, name: str, value: Number) -> None:
        """Add to a number that is summed over buckets and averaged over ranks."""
        self._parts[name] = self._parts.get(name, 0.0) + value

    def ratio(self, name: str, part: Number, whole: Number) -> None:
        """Add to a ratio: the sum of all parts over the sum of all wholes, of all buckets and ranks."""
        self.total(name, part)
        self._wholes[name] = self._wholes.get(name, 0.0) + whole

    @property
    def names(self) -> list[str]:
        """Names of all numbers that were taken, in order."""
        return list(self._parts)

    def take(self) -> Tensor:
        """Parts, and wholes (1 for a total): float64 of shape (2, names) on the CPU; empties the measures.

        Summed over ranks, it is what `values` reads.
        """
        wholes = [self._wholes.get(name, 1.0) for name in self._parts]
        rows = [[float(value) for value in row] for row in (self._parts.values(), wholes)]
        self._parts, self._wholes = {}, {}
        return torch.tensor(rows, dtype=torch.float64)


def values(names: Sequence[str], summed: Tensor) -> dict[str, float]:
    """The numbers by name, from the tensors of `take` summed over ranks; a ratio whose whole is 0 is left out."""
    parts, wholes = summed.tolist()
    return {name: part / whole for name, part, whole in zip(names, parts, wholes, strict=True) if whole}
