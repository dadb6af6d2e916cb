"""Train one composition and record it: what `python train.py` is in a checkout."""

from collections.abc import Sequence

from wirebench.compose.startup import program


def main(arguments: Sequence[str]) -> int:
    """Train; the process ends as ranks do."""
    program(arguments, "wirebench train")
