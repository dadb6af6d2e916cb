"""What a single option does to a method: a row with it beside the row without, to find where accuracy is lost."""

import re
import statistics
from collections.abc import Sequence

from papers.accuracy.rows import Method
from papers.significance import Comparison, compare, corrected
from wirebench.utils.markdown import table

HEAD = ("with", "top-1 %", "beside", "top-1 %", "points", "than that", "bytes, times")


def contrasts(methods: Sequence[Method], margin: float) -> list[str]:
    """The table of all rows whose label is another row's and options; nothing where there are none.

    margin  points of accuracy that do not matter
    """
    known = {method.label: method for method in methods}
    pairs = [(method, known[name]) for method in methods if (name := base(method.label)) in known]
    family = corrected([compare(method.judged, other.judged, margin) for method, other in pairs])
    rows = [_cells(*pair, against) for pair, against in zip(pairs, family, strict=True)]
    return ["What a setting changes:", "", *table(HEAD, rows)] if rows else []


def base(label: str) -> str | None:
    """The method of a label that ends in `key=value`, once or several times; None for another label."""
    name = re.sub(r"( \S+=\S*)+$", "", label)
    return None if name == label else name


def _cells(method: Method, other: Method, against: Comparison | None) -> list[str]:
    ours, theirs = method.judged, other.judged
    sent = [statistics.mean(each.wire_bytes) if each.wire_bytes else None for each in (method, other)]
    return [
        method.title,
        f"{statistics.mean(ours):.2f}" if ours else "-",
        other.title,
        f"{statistics.mean(theirs):.2f}" if theirs else "-",
        "-" if against is None else f"{against.difference:+.1f}",
        "-" if against is None else against.words,
        f"{sent[0] / sent[1]:.2f}" if sent[0] and sent[1] else "-",
    ]
