"""Print the table of the recorded results, or keep README.md's copy of it up to date.

wirebench table                     print it, as Markdown
wirebench table --write README.md   put it between the markers of that file
wirebench table --check README.md   exit code 1 unless that file has it already
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from suite.inspect.results_table import BEGIN, END, ROOT, table
from wirebench.utils import markdown
from wirebench.utils.cli import parser_of


def main(arguments: Sequence[str]) -> int:
    """Print, write or check the table: 1 where --check finds another one."""
    options = _parser().parse_args(arguments)
    target: Path | None = options.write or options.check
    shown = table(options.results, target.parent if target else Path.cwd())
    if target is None:
        print(shown)
    elif options.write:
        markdown.write(target, markdown.replaced(target, shown, BEGIN, END))
    elif markdown.replaced(target, shown, BEGIN, END) != markdown.text_of(target):
        again = f"run: wirebench table --write {target}"
        print(f"{target}: the table is not that of {options.results}; {again}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("table", __doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", type=Path, metavar="FILE", help="replace the table between the markers of FILE")
    what.add_argument("--check", type=Path, metavar="FILE", help="exit code 1 if the table in FILE is another one")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "results", metavar="FOLDER", help="where the records lie (%(default)s)"
    )
    return parser
