"""Print runs side by side.

wirebench show results/runs/A results/runs/B
wirebench show --latest
wirebench show --all results/runs/A
wirebench show --mllog results/runs/A > A.log
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from wirebench.errors import UserError
from wirebench.formats import mllog
from wirebench.record import compare, recorded
from wirebench.record.writer import RUNS
from wirebench.utils.cli import parser_of
from wirebench.utils.console import console


def main(arguments: Sequence[str]) -> int:
    """Show the runs that the command line names."""
    options = _parser().parse_args(arguments)
    paths = [*options.runs, *([_newest(RUNS)] if options.latest else [])]
    if not paths:
        raise UserError("no run given: name run folders or record.json files, or say --latest")
    if options.mllog and len(paths) > 1:
        raise UserError("--mllog: a log of MLPerf's is one run's; name one")
    records = [recorded.read(path) for path in paths]
    if options.mllog:
        try:
            print(*mllog.lines(records[0]), sep="\n")
        except UserError as error:
            raise UserError(f"{paths[0]}: {error}") from error
    elif options.json:
        print(json.dumps(records, indent=2, allow_nan=False))
    else:
        _print(records, paths, options.all)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("show", __doc__)
    parser.add_argument(
        "runs",
        nargs="*",
        type=Path,
        metavar="RUN",
        help="a run's folder, its record.json, or its path in results",
    )
    parser.add_argument("--latest", action="store_true", help=f"also the newest run of {RUNS}")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--all", action="store_true", help="every line: phases, counts of bytes, ratios, readings")
    how.add_argument("--json", action="store_true", help="print the whole records, as a JSON list")
    how.add_argument("--mllog", action="store_true", help="print one run's record as MLPerf's log lines")
    return parser


def _newest(runs: Path) -> Path:
    """The run whose record was written last."""
    records = sorted(runs.glob("*/record.json"), key=lambda path: path.stat().st_mtime)
    if not records:
        raise UserError(f"--latest: {runs} has no run that ended")
    return records[-1]


def _heads(records: list[compare.Record], paths: list[Path]) -> list[str]:
    """The configs' names; where two runs share one, the names of their folders."""
    names = [str(record["config"].get("name", compare.MISSING)) for record in records]
    if len(set(names)) == len(names):
        return names
    return [(path.parent if path.is_file() else path).resolve().name for path in paths]


def _print(records: list[compare.Record], paths: list[Path], everything: bool) -> None:
    shown = console(60 + 60 * len(records), highlight=False)  # into a file or a pipe, nothing is folded
    heads = _heads(records, paths)
    shown.print(compare.table(records, everything, heads))
    for head, record in zip(heads, records, strict=True):
        for line in (*compare.remarks(record), *_beside_references(record)):
            shown.print(f"{head}: {line}", markup=False, soft_wrap=True)


def _beside_references(record: compare.Record) -> list[str]:
    """Remarks on how its accuracy differs from the reference runs; [] unless the data set is CIFAR-10."""
    if record["config"].get("data", {}).get("name") != "cifar10":
        return []
    from wirebench.inspect import reference  # it takes seconds to import

    return reference.remarks(record)
