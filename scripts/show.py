"""Print runs side by side.

python scripts/show.py results/runs/A results/runs/B
python scripts/show.py --latest
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from wirebench.errors import UserError
from wirebench.record import compare, schema
from wirebench.record.writer import RUNS


def main(arguments: Sequence[str] | None = None) -> int:
    """Show the runs that the command line names; 0, or 2 with one line on standard error."""
    options = _parser().parse_args(arguments)
    try:
        paths = [*options.runs, *([_newest(RUNS)] if options.latest else [])]
        if not paths:
            raise UserError("no run given: name run folders or record.json files, or say --latest")
        records = [schema.read(path) for path in paths]
    except UserError as error:
        print(f"show.py: {error}", file=sys.stderr)
        return error.exit_code
    if options.json:
        print(json.dumps(records, indent=2, allow_nan=False))
    else:
        _print(records)
    return 0


def _parser() -> argparse.ArgumentParser:
    summary, _, examples = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog="examples:" + examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="a run's folder, or a record.json")
    parser.add_argument("--latest", action="store_true", help=f"also the newest run of {RUNS}")
    parser.add_argument("--json", action="store_true", help="print the whole records, as a JSON list")
    return parser


def _newest(runs: Path) -> Path:
    """The run whose record was written last."""
    records = sorted(runs.glob("*/record.json"), key=lambda path: path.stat().st_mtime)
    if not records:
        raise UserError(f"--latest: {runs} has no run that ended")
    return records[-1]


def _print(records: list[compare.Record]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        # A file or a pipe has no width: fold nothing.
        console.width = 60 + 60 * len(records)
    console.print(compare.table(records))
    for record in records:
        for line in compare.remarks(record):
            console.print(f"{record['config'].get('name', compare.MISSING)}: {line}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
