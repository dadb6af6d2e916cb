"""How numbers and tables are written in a diagnosis."""

from collections.abc import Callable, Sequence


def ms(seconds: float) -> str:
    """Milliseconds, or seconds from one on; what is left of rounding is none."""
    seconds = round(seconds, 12) + 0.0
    return f"{seconds:.3g} s" if abs(seconds) >= 0.9995 else f"{1e3 * seconds:.3g} ms"


def gbit(bytes_per_second: float) -> str:
    """Gigabits per second, without the unit."""
    return f"{8e-9 * bytes_per_second:.3g}"


def aligned(rows: Sequence[Sequence[str]], put: Callable[[str, int], str]) -> list[str]:
    """Lines of columns: the first one to the left, the others as `put` has it, str.ljust or str.rjust."""
    first, *wide = (max(map(len, column)) for column in zip(*rows, strict=True))
    return ["  ".join([row[0].ljust(first), *map(put, row[1:], wide)]) for row in rows]
