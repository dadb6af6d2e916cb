"""Print the table of the recorded results, or keep a file's copy of it up to date.

  wirebench table                             print it, as Markdown
  wirebench table runs/topk runs/dense        print the table of your own runs, in and below these folders
  wirebench table --write MINE.md             put it between the markers <!-- results:begin --> and :end of that file
  wirebench table --check MINE.md             exit code 1 unless that file has it already
  wirebench table --write results/README.md   that file has markers for the table of `bench overhead`

Without FOLDER the table has the records below --results.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from wirebench.errors import UserError
from wirebench.inspect import overhead_table, results_table
from wirebench.utils import markdown, user_files
from wirebench.utils.cli import parser_of


def main(arguments: Sequence[str]) -> int:
    """Print, write or check the table: 1 where --check finds another one."""
    options = _parser().parse_args(arguments)
    target: Path | None = options.write or options.check
    if options.folders:
        if target is not None:
            raise UserError("FOLDER: --write and --check are about the recorded results; redirect the output instead")
        print(results_table.of_folders(options.folders, Path.cwd()))
        return 0
    if target is None:
        print(results_table.table(options.results, Path.cwd()))
        runs = options.results / "runs"
        if any(runs.glob("*/record.json")):
            print(f"runs of yours, which are not among the results: wirebench table {runs}", file=sys.stderr)
        return 0
    kind = overhead_table if overhead_table.BEGIN in user_files.read(target) else results_table
    sections = {(kind.BEGIN, kind.END): kind.table(options.results, target.parent)}
    if not markdown.kept(target, sections, bool(options.write)):
        again = f"run: wirebench table --write {target}"
        print(f"{target}: the table differs from {options.results}; {again}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("table", __doc__)
    parser.add_argument("folders", nargs="*", type=Path, metavar="FOLDER", help="runs, in place of the results")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", type=Path, metavar="FILE", help="replace the table between the markers of FILE")
    what.add_argument("--check", type=Path, metavar="FILE", help="exit code 1 if the table in FILE is another one")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="FOLDER", help="where the records lie (%(default)s)"
    )
    return parser
