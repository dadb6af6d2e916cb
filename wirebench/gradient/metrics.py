"""Numbers that a method takes of its own exchange: how much was chosen, how much was lost, how good an estimate was.

They cost time, so a method takes them only while `world.measuring` says so. Kept as sums, so that the buckets of a
step and the ranks of a world add up to one number each.
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
        """Add to a number that adds up over buckets; of several ranks, the mean is given."""
        self._parts[name] = self._parts.get(name, 0.0) + value

    def ratio(self, name: str, part: Number, whole: Number) -> None:
        """Add to a ratio: all parts, of all buckets and ranks, over all wholes."""
        self.total(name, part)
        self._wholes[name] = self._wholes.get(name, 0.0) + whole

    @property
    def names(self) -> list[str]:
        """Everything that was taken, in order."""
        return list(self._parts)

    def take(self) -> Tensor:
        """Two rows, float64 on the CPU: parts and wholes (1 for a total) by name; empties the measures.

        The sum of these over ranks, its first row divided by its second, is what `values` gives.
        """
        wholes = [self._wholes.get(name, 1.0) for name in self._parts]
        rows = [[float(value) for value in row] for row in (self._parts.values(), wholes)]
        self._parts, self._wholes = {}, {}
        return torch.tensor(rows, dtype=torch.float64)


def values(names: Sequence[str], summed: Tensor) -> dict[str, float]:
    """The numbers by name, from the sum over ranks of what `take` gave; a ratio of nothing is left out."""
    parts, wholes = summed.tolist()
    return {name: part / whole for name, part, whole in zip(names, parts, wholes, strict=True) if whole}
