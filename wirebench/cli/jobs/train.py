"""Train one composition of model, compressor, scheduler and collective, and record what it puts on the wire."""

from collections.abc import Sequence

from wirebench.compose.startup import program


def main(arguments: Sequence[str]) -> int:
    """Train; the process ends as ranks do."""
    program(arguments, "wirebench train")
