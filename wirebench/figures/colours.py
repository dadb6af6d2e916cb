"""One colour a name, in every figure: methods by families, schedules, collectives, phases; and their tones as text."""

from collections.abc import Iterator, Mapping, Sequence

BLUE, VERMILLION, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, INK, GREY = "#E69F00", "#56B4E9", "#222222", "#777777"
"""Okabe and Ito's, which the colour-blind can tell apart, but for their yellow, which is no colour for a line."""
WINE, OLIVE, PURPLE, BROWN, PALE = "#882255", "#999933", "#7B4FA3", "#8C564B", "#BBBBBB"
"""Where six do not suffice, after Tol's."""
_ALL = (BLUE, VERMILLION, GREEN, PINK, ORANGE, SKY, INK, GREY, WINE, OLIVE, PURPLE, BROWN)

DENSE = {"dense": INK, "none": INK, "DDP": GREY}
FAMILIES: Mapping[str, Mapping[str, str]] = {
    "sketches": {
        "gs_sgd": BLUE, "sketched_sgd": VERMILLION, "fetch_sgd": GREEN, "iblt": ORANGE,
        "oracle top-k of the sum": PINK, "oracle HEAVYMIX": SKY,
    },
    "top-k": {
        "topk": BLUE, "gtopk": VERMILLION, "dgc": GREEN, "oktopk": PINK, "clt_k": ORANGE, "threshold": SKY,
        "randomk": WINE, "iwp": OLIVE, "chunk_topk": BROWN,
    },
    "fewer bits": {
        "fp16": BLUE, "bf16": VERMILLION, "int8": GREEN, "qsgd": PINK, "terngrad": ORANGE, "signsgd": SKY,
        "onebit": WINE, "quantised_sum": OLIVE,
    },
    "low rank": {"powersgd": BLUE, "acp_sgd": VERMILLION},
}  # fmt: skip
"""Methods of one family share no colour; one family is shown at a time."""
OTHER = "other methods"

SCHEDULES = {
    "wfbp": BLUE, "single": ORANGE, "sync_easgd": ORANGE, "mg_wfbp": VERMILLION, "optimal": GREEN,
    "mg_wfbp_later": PINK, "asc_wfbp": SKY, "fused": WINE, "dear": PURPLE, "naive": BROWN, "easgd": OLIVE,
    "builtin": GREY, "native": GREY, "outer": INK,
}  # fmt: skip
COLLECTIVES = {
    "ring": (BLUE, "circle"), "native": (GREY, "square"), "flexreduce": (VERMILLION, "diamond"),
    "blueconnect": (GREEN, "triangle-up"), "halving_doubling": (PINK, "triangle-down"),
    "recursive_doubling": (SKY, "triangle-left"), "tree": (ORANGE, "triangle-right"), "star": (BROWN, "cross"),
    "hierarchical": (PURPLE, "circle"), "one_hop": (WINE, "square"),
}  # fmt: skip
"""Colours of collectives, with the shapes of their points."""
STEP = {"computing": PALE, "compressing": ORANGE, "communication that is not hidden": BLUE}
"""The parts of a training step."""
PARTS = {
    "update": SKY, "select": VERMILLION, "encode": ORANGE, "recover": WINE, "decode": GREEN, "merge": PINK,
    "other": PALE,
}  # fmt: skip
"""The phases of a compressor."""
MEMORY = {"kept": BLUE, "during a step": "#A6CEE3"}

_UNKNOWN = (OLIVE, WINE, BROWN, PURPLE)
"""Colours for users' own plugins."""
DASHES: Sequence[Sequence[int]] = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3), (1, 4), (12, 4), (6, 2, 2, 2, 2, 2))
"""Dash patterns: the first for a method, the others for its variants."""
TEXT_CONTRAST, DARK = 4.5, "#16181D"
"""The contrast that WCAG requires of small text; the background of a dark page."""


def family(label: str) -> str:
    """The family of a method's label; OTHER for a method of none."""
    return next((name for name, methods in FAMILIES.items() if base(label) in methods), OTHER)


def base(label: str) -> str:
    """The method that a label is a variant of: `gs_sgd literal` is `gs_sgd`, `dense, one message` is `dense`."""
    known = [name for table in (DENSE, *FAMILIES.values()) for name in table if _is_variant(label, name)]
    return max(known, key=len, default=label.partition(" ")[0])


def _is_variant(label: str, name: str) -> bool:
    return label == name or label.startswith((f"{name} ", f"{name}, "))


def method(label: str) -> str:
    """The colour of a compressor, dense training or DDP, whatever options follow."""
    every = DENSE | {name: colour for methods in FAMILIES.values() for name, colour in methods.items()}
    return every.get(base(label)) or _unknown(base(label))


def schedule(label: str) -> str:
    """The colour of a schedule, whatever options follow."""
    name = label.partition(" ")[0]
    return SCHEDULES.get(name) or _unknown(name)


def collective(name: str) -> tuple[str, str]:
    """Colour of an all-reduce, and shape of its points."""
    return COLLECTIVES.get(name) or (_unknown(name), "stroke")


def _unknown(name: str) -> str:
    return _UNKNOWN[sum(map(ord, name)) % len(_UNKNOWN)]


def dashes(labels: Sequence[str]) -> dict[str, Sequence[int]]:
    """A method's line is solid, each of its variants has another dash."""
    found: dict[str, Sequence[int]] = {}
    variants: dict[str, int] = {}
    for label in sorted(labels, key=lambda label: (base(label), "=" in label, label)):
        if label == base(label):
            found[label] = DASHES[0]
        else:
            variants[base(label)] = number = variants.get(base(label), 0) + 1
            found[label] = DASHES[1 + (number - 1) % (len(DASHES) - 1)]
    return found


def text(colour: str) -> str:
    """The colour as small text on white: as much darker as it takes."""
    return next(tone for tone in _towards(colour, 0) if contrast(tone, "#FFFFFF") >= TEXT_CONTRAST)


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, from 1 to 21, as WCAG 2 defines it."""
    low, high = sorted(map(_luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    shares = [value / 255 for value in _channels(colour)]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _channels(colour: str) -> list[int]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def _towards(colour: str, end: int) -> Iterator[str]:
    """The colour itself, then ever nearer to black (0) or white (255)."""
    for step in range(21):
        mixed = [round(value + (end - value) * step / 20) for value in _channels(colour)]
        yield "#" + "".join(f"{value:02X}" for value in mixed)


def _lighter(colour: str) -> str:
    return next(tone for tone in _towards(colour, 255) if contrast(tone, DARK) >= TEXT_CONTRAST)


ON_DARK = {dark: _lighter(colour) for colour in _ALL for dark in (text(colour), colour)} | {INK: "#E8E8E8"}
"""What replaces a colour of a mark or of a text on a dark ground."""
