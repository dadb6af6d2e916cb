"""Altair, which is imported with the first chart: it takes most of a second, and is an extra."""

from typing import TYPE_CHECKING

from wirebench.utils.extras import Late

if TYPE_CHECKING:
    import altair as alt
else:
    alt = Late("altair")

__all__ = ["alt"]
