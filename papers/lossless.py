"""The row of a code that loses nothing: the bar of tables with a ratio of dense training's bytes.

It is measured on gradients (docs/sums.md), not run: bytes are all that is known of it.
"""

from collections.abc import Iterable, Sequence

from wirebench.planner import sums
from wirebench.record.notes import NotedRun

LABEL = "fp32 without loss"
LANGUAGE = "tokens"
"""What samples of a language model are counted in."""


def row(head: Sequence[str], column: str, unit: str) -> list[str]:
    """The cells: how many times fewer bytes than dense training's, in `column`. unit: of the model's samples."""
    return list((dict.fromkeys(head, "-") | {head[0]: LABEL, column: f"{_times(unit, 'ratio'):.3g}x"}).values())


def note(unit: str) -> list[str]:
    """What the row is of; lines of Markdown."""
    return [
        f"`{LABEL}`: a Huffman code of exponents, measured on gradients ({sums.load(unit).words}) and not run here. "
        f"One code for all exponents saves at most {_times(unit, 'bound'):.4g}x there; a code for each piece of them "
        "may save a little more (docs/sums.md).",
        "",
    ]


def unit_of(runs: Iterable[NotedRun]) -> str:
    """What the samples of trainings are: a language model's are tokens."""
    return LANGUAGE if any(run.has("final", "bits_per_byte") for run in runs) else "images"


def _times(unit: str, of: str) -> float:
    return sums.load(unit).lossless[sums.EXACT][of]
