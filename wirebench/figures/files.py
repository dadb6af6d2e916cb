"""Figures as files: the same bytes for the same figure, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wirebench.errors import UserError
from wirebench.figures.style import Figure
from wirebench.utils.extras import Late
from wirebench.utils.files import write_atomically

if TYPE_CHECKING:
    import vl_convert
else:
    vl_convert = Late("vl_convert")


VEGA_LITE = "6.4"
"""The version whose charts Altair makes."""
SHARP = 2
"""Pixels of a file for each of the figure's."""
MADE_OF = b"wirebench:chart\0"
"""Keyword of the PNG's text chunk. The chunk holds two SHA-256 digests: one of the chart's specification, which
identifies the chart, and one of the file without the chunk, which detects a changed picture."""
SIGNATURE_AND_HEAD = 8 + 25
"""Bytes of a PNG before its first chunk that is free to choose."""


def _png(spec: str) -> bytes:
    return _stamped(vl_convert.vegalite_to_png(spec, vl_version=VEGA_LITE, scale=SHARP), _digest(spec.encode()))


def _stamped(drawn: bytes, made_of: bytes) -> bytes:
    """The picture with the chunk that says what it shows."""
    text = b"tEXt" + MADE_OF + made_of + b" " + _digest(drawn)
    chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
    return drawn[:SIGNATURE_AND_HEAD] + chunk + drawn[SIGNATURE_AND_HEAD:]


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def intact(path: Path) -> bool:
    """Whether the PNG file at `path` is one that `save` drew, to the byte."""
    content = path.read_bytes()
    made_of = content[SIGNATURE_AND_HEAD + 8 + len(MADE_OF) :][: len(_digest(b""))]
    chunk = len(_stamped(b"", made_of))
    return content == _stamped(content[:SIGNATURE_AND_HEAD] + content[SIGNATURE_AND_HEAD + chunk :], made_of)


def shows(path: Path, figure: Figure) -> bool:
    """Whether the PNG file at `path` was made of this figure, and is as it was drawn.

    It is not drawn anew, which would take a second, and give other bytes with other fonts.
    """
    if not path.is_file():
        return False
    return MADE_OF + _digest(_specification(figure).encode()) in path.read_bytes() and intact(path)


def specification(figure: Figure) -> dict[str, Any]:
    """As Vega-Lite has it; that it is one, tests check (tests/charts.py): it takes longer than all else of a page."""
    return figure.to_dict(validate=False)


def _specification(figure: Figure) -> str:
    return json.dumps(specification(figure))


def _svg(spec: str) -> bytes:
    return _drawn(spec).encode()


def _pdf(spec: str) -> bytes:
    return vl_convert.svg_to_pdf(_drawn(spec))


def _drawn(spec: str) -> str:
    """The SVG; Vega counts its clip paths from process start on, here they are counted from 0."""
    drawn = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
    numbers: dict[str, int] = {}
    return re.sub(r'(?<=["#])clip(\d+)', lambda found: f"clip{numbers.setdefault(found[1], len(numbers))}", drawn)


KINDS: Mapping[str, Callable[[str], Any]] = {".png": _png, ".svg": _svg, ".pdf": _pdf}
"""Functions that render a chart, by the file's suffix."""


def save(figure: Figure, path: Path) -> Path:
    """Write the figure, and make its folder; UserError if it cannot be written, or its suffix is unknown."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    return write(figure, path)


def write(figure: Figure, path: Path) -> Path:
    """Write the figure into a folder that exists; UserError if it cannot be written, or its suffix is unknown."""
    draw = KINDS.get(path.suffix or ".png")
    if draw is None:
        raise UserError(f"{path}: cannot be written: a figure is one of {', '.join(KINDS)}, not {path.suffix!r}")
    try:
        write_atomically(path, draw(_specification(figure)))
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from error
    return path
