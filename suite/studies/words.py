"""Numbers as reports write them."""


def size(count: float | None) -> str:
    """Bytes, in kB or MB."""
    if count is None:
        return "-"
    return f"{count / 1e6:.3g} MB" if abs(count) >= 1e6 else f"{count / 1e3:.3g} kB"
