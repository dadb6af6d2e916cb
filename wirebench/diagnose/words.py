"""How numbers are written in a diagnosis."""


def ms(seconds: float) -> str:
    """Milliseconds, or seconds from one on; what is left of rounding is none."""
    seconds = round(seconds, 12) + 0.0
    return f"{seconds:.3g} s" if abs(seconds) >= 0.9995 else f"{1e3 * seconds:.3g} ms"


def gbit(bytes_per_second: float) -> str:
    """Gigabits per second, without the unit."""
    return f"{8e-9 * bytes_per_second:.3g}"
