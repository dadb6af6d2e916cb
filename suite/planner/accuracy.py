"""What compressors did to the accuracy where it was measured, to be read beside what they gain."""

from dataclasses import dataclass
from typing import NamedTuple

ELSEWHERE = "*"
"""Marks what was measured at another density."""


class Ended(NamedTuple):
    """How a compressor's runs ended: points of top-1 above dense (None: diverged), its density if it has one.

    between  the least and the most points of its seeds; None where one alone was trained
    """

    points: float | None
    density: float | None
    between: tuple[float, float] | None = None

    @property
    def said(self) -> str:
        """In a sentence."""
        if self.points is None:
            return "diverged"
        return _signed(self.points) + ("" if self.between is None else f" [{' - '.join(map(_signed, self.between))}]")

    @property
    def cell(self) -> str:
        """In a table."""
        return self.said if self.points is None or self.between is None else "..".join(map(_signed, self.between))


@dataclass(frozen=True)
class Accuracies:
    """Runs of compressors with their own options, beside dense ones.

    setting  what they trained, in words; "" where there are none
    known    by compressor
    """

    setting: str
    known: dict[str, Ended]

    def cell(self, name: str, density: float | None) -> str:
        """Of a table, for a compressor that works at this density; "" where it was not measured."""
        if name not in self.known:
            return ""
        return self.known[name].cell + (ELSEWHERE if self.elsewhere(name, density) else "")

    def elsewhere(self, name: str, density: float | None) -> bool:
        """Whether the compressor ended well, at another density than this."""
        return name in self.known and not self.diverged(name) and self.known[name].density != density

    def trained(self, name: str) -> bool:
        """Whether the compressor was trained to an end; True where nothing at all was measured."""
        return not self.known or (name in self.known and not self.diverged(name))

    def diverged(self, name: str) -> bool:
        """Whether it was seen to."""
        return name in self.known and self.known[name].points is None


def _signed(points: float) -> str:
    return f"{round(points, 1) + 0.0:+.1f}"
