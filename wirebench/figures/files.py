"""Figures as files: the same bytes for the same figure, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wirebench.errors import UserError
from wirebench.figures.smaller import smaller
from wirebench.figures.style import Figure
from wirebench.utils import user_files
from wirebench.utils.extras import Late

if TYPE_CHECKING:
    import vl_convert
else:
    vl_convert = Late("vl_convert")


VEGA_LITE = "6.4"
"""The version whose charts Altair makes."""
SHARP = 2
"""Pixels of a file for each of the figure's."""
MADE_OF = b"<!-- wirebench:chart %s %s -->\n"
"""The last line of an SVG: SHA-256 digests of the chart's specification, which identifies the chart, and of the file
without this line, which detects a changed picture."""


def _png(spec: str) -> bytes:
    return vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=SHARP)


def _stamped(drawn: bytes, made_of: bytes) -> bytes:
    return drawn.rstrip(b"\n") + b"\n" + MADE_OF % (made_of, _digest(drawn.rstrip(b"\n")))


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def shows(path: Path, figure: Figure) -> bool:
    """Whether the SVG file at `path` was made of this figure, and is as it was drawn.

    It is not drawn anew, which would take a second, and give another picture with other fonts.
    """
    if not path.is_file():
        return False
    drawn = b"\n".join(path.read_bytes().split(b"\n")[:-2])
    return path.read_bytes() == _stamped(drawn, _digest(_specification(figure).encode()))


def specification(figure: Figure) -> dict[str, Any]:
    """As Vega-Lite has it; that it is one, tests check (tests/charts.py): it takes longer than all else of a page."""
    return figure.to_dict(validate=False)


def _specification(figure: Figure) -> str:
    return json.dumps(_finite(specification(figure)), allow_nan=False)


def _finite(value: Any) -> Any:
    """The value with null for numbers that JSON does not know, such as the end of an interval without one."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


def _svg(spec: str) -> bytes:
    return _stamped(smaller(_drawn(spec)).encode(), _digest(spec.encode()))


def _pdf(spec: str) -> bytes:
    return vl_convert.svg_to_pdf(_drawn(spec))


def _drawn(spec: str) -> str:
    return str(vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE))


KINDS: Mapping[str, Callable[[str], Any]] = {".png": _png, ".svg": _svg, ".pdf": _pdf}
"""Functions that render a chart, by the file's suffix."""


def save(figure: Figure, path: Path) -> Path:
    """Write the figure, and make its folder; UserError if it cannot be written, or its suffix is unknown."""
    draw = KINDS.get(path.suffix or ".png")
    if draw is None:
        raise UserError(f"{path}: cannot be written: a figure is one of {', '.join(KINDS)}, not {path.suffix!r}")
    user_files.write(path, draw(_specification(figure)))
    return path
