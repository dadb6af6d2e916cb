"""Print runs side by side.

python scripts/show.py results/runs/A results/runs/B
python scripts/show.py --latest
python scripts/show.py --all results/runs/A
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from wirebench import report, schema
from wirebench.errors import UserError
from wirebench.record import RUNS


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
        _print(records, paths, options.all)
    return 0


def _parser() -> argparse.ArgumentParser:
    summary, _, examples = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog="examples:" + examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="a run's folder, or a record.json")
    parser.add_argument("--latest", action="store_true", help=f"also the newest run of {RUNS}")
    parser.add_argument("--all", action="store_true", help="every line: phases, counts of bytes, ratios, readings")
    parser.add_argument("--json", action="store_true", help="print the whole records, as a JSON list")
    return parser


def _newest(runs: Path) -> Path:
    """The run whose record was written last."""
    records = sorted(runs.glob("*/record.json"), key=lambda path: path.stat().st_mtime)
    if not records:
        raise UserError(f"--latest: {runs} has no run that ended")
    return records[-1]


def _heads(records: list[report.Record], paths: list[Path]) -> list[str]:
    """The configs' names; where two runs share one, the names of their folders."""
    names = [str(record["config"].get("name", report.MISSING)) for record in records]
    if len(set(names)) == len(names):
        return names
    return [(path if path.is_dir() else path.parent).resolve().name for path in paths]


def _print(records: list[report.Record], paths: list[Path], everything: bool) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        # A file or a pipe has no width: fold nothing.
        console.width = 60 + 60 * len(records)
    heads = _heads(records, paths)
    console.print(report.table(records, everything, heads))
    for head, record in zip(heads, records, strict=True):
        for line in report.remarks(record):
            console.print(f"{head}: {line}", markup=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
