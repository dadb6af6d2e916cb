"""A chart's SVG in a third of the bytes, with the same picture."""

from __future__ import annotations

import re
from collections import Counter
from itertools import groupby, pairwise
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

SVG = "{http://www.w3.org/2000/svg}"
PAINT = (
    "fill", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "opacity", "font-size", "font-style",
    "font-weight", "text-anchor",
)  # fmt: skip
"""Attributes that become one class of the style sheet."""
FONT = "font-family"
UNSEEN = ("class", "aria-hidden", "aria-roledescription", "pointer-events", "version")
"""Attributes that no viewer of a file shows or reads aloud."""
DEFAULTS = {
    "opacity": "1", "font-weight": "normal", "font-style": "normal", "text-anchor": "start", "stroke-width": "1",
    "stroke-dasharray": "1,0", "transform": "translate(0,0)",
}  # fmt: skip
NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+e-\d+")
TRANSLATED = re.compile(r"translate\(([^,()]+),([^,()]+)\)")
LINES = re.compile(r"M[^A-Za-z]+(?:L[^A-Za-z]+)+Z?")
"""A path of straight lines between absolute places, each "x,y"."""
LINE = re.compile(r"(?:M[^A-Za-z]+[hv][^A-Za-z]+)+")
"""A path of level or upright lines, which do not cross."""
FAINT = re.compile(r"\.(\w+)\{[^}]*(?<!-)opacity")
"""A class with an opacity: of a group it would be another picture than of each mark."""
OFTEN = 4
"""A shape that is drawn at least as often is written once."""
LONG = 60
"""Characters of a path or a group from which on it is written once, if a chart has it several times."""
WRITTEN = ("Title text", "Subtitle text")
"""How the labels begin that repeat a text of the chart."""


def smaller(svg: str) -> str:
    """The SVG without what cannot be seen; coordinates have a decimal, paints and repeated shapes stand once.

    It is for charts that Vega drew: no mark of theirs inherits a paint, but `fill="none"`.
    """
    ElementTree.register_namespace("", SVG[1:-1])
    root = ElementTree.fromstring(svg)
    _tidy(root)
    _clips(root)
    shapes = _shapes(root)
    style = _classes(root)
    _join(root)
    _once(root, shapes)
    root[:] = [style, *([shapes] if len(shapes) else []), *root]
    _inherit(root, {*FAINT.findall(str(style.text))})
    return ElementTree.tostring(root, encoding="unicode").replace(" />", "/>")


def _tidy(element: Element) -> None:
    """Shorten an element's attributes, and drop what is unseen below it."""
    for name in [name for name, value in element.attrib.items() if name in UNSEEN or DEFAULTS.get(name) == value]:
        del element.attrib[name]
    label = element.get("aria-label")
    if element.tag != f"{SVG}g" or label is None or label.startswith(WRITTEN):
        # A screen reader gets the axes' labels and the titles, and not a label for each of a thousand marks.
        element.attrib.pop("aria-label", None)
        element.attrib.pop("role", None)
    if "stroke" not in element.attrib:
        element.attrib.pop("stroke-width", None)
    for name in ("d", "transform", "x", "y", "x2", "y2", "width", "height"):
        if name in element.attrib:
            element.set(name, NUMBER.sub(_rounded, element.attrib[name]))
    if LINES.fullmatch(element.get("d", "")):
        element.set("d", _relative(element.attrib["d"]))
    if element.tag == f"{SVG}line":
        _as_path(element)
    elif element.tag == f"{SVG}text" and not len(element):
        _place(element)
    kept: list[Element] = []
    for child in element:
        _tidy(child)
        if child.tag == f"{SVG}g" and not child.attrib:
            kept += list(child)
        elif not _unseen(child):
            kept.append(child)
    element[:] = kept


def _rounded(found: re.Match[str]) -> str:
    return _short(float(found[0]))


def _short(number: float) -> str:
    """A coordinate with a decimal, where it has one."""
    return f"{round(number, 1) + 0.0:.1f}".removesuffix(".0")


def _relative(path: str) -> str:
    """A path of lines, each by how far it leads, which needs fewer digits than where."""
    places = [tuple(float(each) for each in place.split(",")) for place in re.findall(r"[^MLZ]+", path)]
    steps = [",".join(_short(end - start) for start, end in zip(*pair, strict=True)) for pair in pairwise(places)]
    began, *_ = re.findall(r"[^MLZ]+", path)
    return f"M{began}l{' '.join(steps)}".replace(" -", "-").replace(",-", "-") + "Z" * path.endswith("Z")


def _as_path(line: Element) -> None:
    """A line from its `transform` to `x2`, `y2`, which is shorter as a path."""
    found = TRANSLATED.fullmatch(line.attrib.pop("transform", "translate(0,0)"))
    assert found is not None
    line.tag = f"{SVG}path"
    across, down = line.attrib.pop("x2", "0"), line.attrib.pop("y2", "0")
    leads = f"v{down}" if across == "0" else f"h{across}" if down == "0" else f"l{across},{down}"
    line.set("d", f"M{found[1]},{found[2]}{leads}")


def _place(text: Element) -> None:
    """A text at `x`, `y`, which is shorter than a `transform`."""
    if found := TRANSLATED.fullmatch(text.get("transform", "")):
        del text.attrib["transform"]
        text.attrib = {"x": found[1], "y": found[2], **text.attrib}


def _join(element: Element) -> None:
    """Make one path of lines that follow each other and have one class, such as a grid's."""
    kept: list[Element] = []
    for child in element:
        _join(child)
        if (
            kept
            and all(LINE.fullmatch(each.get("d", "")) and len(each.attrib) == 2 for each in (kept[-1], child))
            and (child.get("class") == kept[-1].get("class"))
        ):
            kept[-1].set("d", kept[-1].attrib["d"] + child.attrib["d"])
        else:
            kept.append(child)
    element[:] = kept


def _once(root: Element, definitions: Element) -> None:
    """Define a path or a group that stands several times, such as the baseline of each panel; the places use it."""
    counts = Counter(map(_written, root.iter()))
    names: dict[str, str] = {}

    def replace(element: Element) -> None:
        for place, child in enumerate(element):
            text = _written(child)
            if counts[text] == 1 or len(text) < LONG or child.tag == f"{SVG}defs":
                replace(child)
                continue
            if text not in names:
                names[text] = f"r{len(names)}"
                child.set("id", names[text])
                definitions.append(child)
            element[place] = Element(f"{SVG}use", {"href": f"#{names[text]}"})

    replace(root)


def _inherit(element: Element, faint: set[str]) -> None:
    """Give the class of neighbours that have the same one to a group of them."""
    kept: list[Element] = []
    for name, those in groupby(element, key=lambda child: child.get("class", "")):
        alike = list(those)
        if len(alike) < OFTEN or not name or name in faint or any(len(each) for each in alike):
            kept += alike
            continue
        for each in alike:
            del each.attrib["class"]
        if len(alike) == len(element) and element.tag == f"{SVG}g" and "class" not in element.attrib:
            element.set("class", name)
            return
        group = Element(f"{SVG}g", {"class": name})
        group.extend(alike)
        kept.append(group)
    element[:] = kept
    for child in element:
        _inherit(child, faint)


def _written(element: Element) -> str:
    """A path or a group without a label as text; "" for another element."""
    is_whole = element.tag in (f"{SVG}path", f"{SVG}g") and "aria-label" not in element.attrib
    return ElementTree.tostring(element, encoding="unicode") if is_whole else ""


def _unseen(element: Element) -> bool:
    if element.tag == f"{SVG}g":
        return len(element) == 0
    if element.tag == f"{SVG}path":
        painted = {element.get("fill", "none"), element.get("stroke", "none")} - {"none", "transparent"}
        return not painted or not element.get("d") or element.get("opacity") == "0"
    return False


def _clips(root: Element) -> None:
    """Keep one of equal clip paths. Vega counts them from process start on, here they are counted from 0."""
    names: dict[str, str] = {}
    contents: dict[bytes, str] = {}
    for defs in root.iter(f"{SVG}defs"):
        for clip in defs.findall(f"{SVG}clipPath"):
            old = clip.attrib.pop("id")
            content = ElementTree.tostring(clip)
            if content in contents:
                defs.remove(clip)
            names[f"url(#{old})"] = contents.setdefault(content, f"clip{len(contents)}")
            clip.set("id", contents[content])
    for element in root.iter():
        if "clip-path" in element.attrib:
            element.set("clip-path", f"url(#{names[element.attrib['clip-path']]})")


def _shapes(root: Element) -> Element:
    """The definitions of shapes that are drawn often; the marks then use them."""
    moved = [each for each in root.iter(f"{SVG}path") if TRANSLATED.fullmatch(each.get("transform", ""))]
    often = [shape for shape, count in Counter(each.attrib["d"] for each in moved).items() if count >= OFTEN]
    names = {shape: f"s{number}" for number, shape in enumerate(often)}
    for each in moved:
        if each.attrib["d"] in names:
            at = TRANSLATED.fullmatch(each.attrib.pop("transform"))
            assert at is not None
            each.tag = f"{SVG}use"
            each.attrib = {"href": f"#{names[each.attrib.pop('d')]}", "x": at[1], "y": at[2], **each.attrib}
    defs = Element(f"{SVG}defs")
    defs.extend(Element(f"{SVG}path", {"id": name, "d": shape}) for shape, name in names.items())
    return defs


def _classes(root: Element) -> Element:
    """The style sheet: one class for each set of paints; the elements get its name."""
    rules: dict[str, str] = {}
    for element in root.iter():
        paint = ";".join(f"{name}:{element.attrib.pop(name)}" for name in PAINT if name in element.attrib)
        if paint:
            element.set("class", rules.setdefault(paint, f"c{len(rules)}"))
    fonts = {element.attrib.pop(FONT) for element in root.iter() if FONT in element.attrib}
    assert len(fonts) <= 1, f"texts of one chart have {fonts}"
    style = Element(f"{SVG}style")
    style.text = "".join(f"text{{{FONT}:{font}}}" for font in fonts)
    style.text += "".join(f".{name}{{{paint}}}" for paint, name in rules.items())
    return style
