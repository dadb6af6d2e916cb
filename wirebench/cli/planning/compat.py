"""What goes with what: schedulers, compressors and collectives, and how refused settings are answered.

  wirebench compat                               print it, as Markdown
  wirebench compat --write docs/compatibility.md put the tables between the markers of that file
  wirebench compat --check docs/compatibility.md exit code 1 unless that file has them already

Each scheduler's driver is asked about every compressor and every collective. Every compressor exchanges two steps of a
small model between five virtual workers, on every collective.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from wirebench.inspect import compatibility, refusals
from wirebench.utils import markdown
from wirebench.utils.cli import parser_of

MARKERS = {
    "drivers": ("<!-- drivers:begin -->", "<!-- drivers:end -->"),
    "matrix": ("<!-- matrix:begin -->", "<!-- matrix:end -->"),
    "refused": ("<!-- refused:begin -->", "<!-- refused:end -->"),
}


def main(arguments: Sequence[str]) -> int:
    """Print, write or check the page: 1 where --check finds another one."""
    options = _parser().parse_args(arguments)
    target: Path | None = options.write or options.check
    if target is not None:
        for begin, end in MARKERS.values():
            markdown.replaced(target, "", begin, end)  # before all the work: a page without markers
    shown = {
        "drivers": compatibility.drivers(), "matrix": compatibility.matrix(), "refused": refusals.table(),
    }  # fmt: skip
    if target is None:
        print("\n\n".join(shown.values()))
        return 0
    if not markdown.kept(target, {MARKERS[name]: text for name, text in shown.items()}, bool(options.write)):
        print(f"{target}: is out of date; run: wirebench compat --write {target}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("compat", __doc__)
    either = parser.add_mutually_exclusive_group()
    either.add_argument("--write", type=Path, metavar="FILE", help="put the tables between the markers of this file")
    either.add_argument("--check", type=Path, metavar="FILE", help="exit code 1 unless this file has them")
    return parser
