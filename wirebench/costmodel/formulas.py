"""A ring's cost by the papers' formula, in their symbols.

- alpha: start-up time of a message, in seconds
- beta: seconds per byte on the wire, 1 / w, w being a link's bytes per second
- gamma: seconds per byte added
- n: bytes that are summed
- N: number of ranks (P in two of the papers), the argument `size`

Source: MG-WFBP (Shi and Chu, INFOCOM 2019), Table II. tests/costmodel/closed_forms.py has other papers' formulas.
"""

from typing import NamedTuple


class CostLine(NamedTuple):
    """T(n) = a + b n: `a` in seconds, `b` in seconds per byte (MG-WFBP, Eq. 9)."""

    a: float
    b: float

    def seconds(self, n: float) -> float:
        """The cost of `n` bytes."""
        return self.a + self.b * n


def ring(size: int, alpha: float, beta: float, gamma: float = 0.0) -> CostLine:
    """Ring, any N: a = 2(N-1) alpha, b = (N-1)/N (2 beta + gamma). MG-WFBP, Table II."""
    return CostLine(2 * (size - 1) * alpha, (size - 1) / size * (2 * beta + gamma))
