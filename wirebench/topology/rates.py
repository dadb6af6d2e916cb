"""Link rates in words: 1gbit, 200mbit, 100kbit, in bits per second with decimal prefixes, as network people count."""

import re

from wirebench.errors import UserError

UNITS = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
LOWEST, HIGHEST = 8e3, 1e12
"""Rates that a link can be shaped to, in bits per second; below these a single packet takes seconds."""


def parse_rate(text: str, option: str = "--link") -> float:
    """Bits per second of `1gbit`, `2.5gbit`, `200mbit`, `100kbit` or `9600bit`; UserError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(bit|kbit|mbit|gbit)", text.strip().lower())
    if match is None:
        raise UserError(f"{option}: cannot read the rate {text!r}; bits per second read 1gbit, 200mbit or 100kbit")
    rate = float(match[1]) * UNITS[match[2]]
    if not LOWEST <= rate <= HIGHEST:
        raise UserError(f"{option}: {text!r} is not between {show_rate(LOWEST)} and {show_rate(HIGHEST)}")
    return rate


def show_rate(bits_per_second: float) -> str:
    """The rate in the largest unit of which it is at least one."""
    unit = max((u for u in UNITS if UNITS[u] <= bits_per_second), key=lambda u: UNITS[u], default="bit")
    return f"{bits_per_second / UNITS[unit]:g}{unit}"
