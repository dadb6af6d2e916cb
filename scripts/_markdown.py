"""A table in Markdown."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Its lines, and an empty one."""
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(cells) + " |" for cells in rows), ""]
