"""Print the table of the recorded results, or keep README.md's copy of it up to date.

wirebench table                     print it, as Markdown
wirebench table --write README.md   put it between the markers of that file
wirebench table --check README.md   exit code 1 unless that file has it already
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wirebench import report, schema
from wirebench.errors import UserError
from wirebench.utils import markdown as markers

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
EMPTY = "No result is recorded yet."
COLUMNS = {
    "engine": "engine",
    "model": "model",
    "compressor": "compressor",
    "scheduler": "scheduler",
    "collective": "collective",
    "images/s [p10 - p90]": "images/s [p10 - p90]",
    "step ms [p10 - p90]": "step ms [p10 - p90]",
    "wire bytes/step": "wire bytes/step",
    "ratio wire": "ratio",
    "top1": "top1",
}
"""Labels of report.rows, and the heads of their columns."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line: 0; 1 where --check finds another table; 2 with one line on standard error."""
    options = _parser().parse_args(arguments)
    target: Path | None = options.write or options.check
    try:
        shown = table(options.results, target.parent if target else Path.cwd())
        if target is None:
            print(shown)
        elif options.write:
            markers.write(target, markers.replaced(target, shown, BEGIN, END))
        elif markers.replaced(target, shown, BEGIN, END) != markers.text_of(target):
            print(f"{target}: the table is not that of {options.results}; {_command(target)}", file=sys.stderr)
            return 1
    except UserError as error:
        print(f"results_table.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def table(results: Path, base: Path) -> str:
    """All records below `results` as a Markdown table, in order of their paths; links are relative to `base`.

    What lies in results/runs is no result: every run writes there. What lies below a folder with a table.md stands in
    that table. Raises UserError, naming it, for a damaged record.
    """
    told = {path.parent for path in results.glob("**/table.md")}
    paths = sorted(
        path
        for path in results.glob("*/**/record.json")
        if path.relative_to(results).parts[0] != "runs" and told.isdisjoint(path.parents)
    )
    if not paths:
        return EMPTY
    heads = ["run", "machine", *COLUMNS.values()]
    lines = [heads, ["---"] * len(heads), *(_row(path, base) for path in paths)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def machine(record: report.Record) -> str:
    """The hardware that a record was measured on, from its environment: the GPUs or the cores of rank 0's host."""
    environment: dict[str, Any] = record["environment"]
    gpus, cpu = environment.get("gpus") or [], environment.get("cpu") or {}
    if record["device"] == "cuda" and gpus:
        kinds = dict.fromkeys(gpus)
        found = ", ".join(f"{gpus.count(kind)} x {kind}" for kind in kinds)
    else:
        found = f"{cpu.get('model') or 'unknown CPU'}, {cpu.get('cores') or '?'} cores"
    hosts = {str(peer).rpartition(" on ")[2] for peer in environment.get("peers", [])}
    return found if len(hosts) < 2 else f"{len(hosts)} hosts, each {found}"


def _row(path: Path, base: Path) -> list[str]:
    record = schema.read(path)
    # What a config expects is for who runs it; here stands what was measured.
    rows = report.rows({**record, "config": {**record["config"], "expected": {}}})
    status = "" if record["status"] == "finished" else f" ({record['status']})"
    link = Path(os.path.relpath(path.resolve(), base.resolve())).as_posix().replace(" ", "%20")
    name = f"[{_cell(str(record['config'].get('name', path.parent.name)))}]({link}){status}"
    return [name, _cell(machine(record)), *(_cell(rows[label]) for label in COLUMNS)]


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _command(target: Path) -> str:
    return f"run: wirebench table --write {target}"


def _parser() -> argparse.ArgumentParser:
    summary, _, examples = str(__doc__).partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog="examples:" + examples, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", type=Path, metavar="FILE", help="replace the table between the markers of FILE")
    what.add_argument("--check", type=Path, metavar="FILE", help="exit code 1 if the table in FILE is another one")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "results", metavar="FOLDER", help="where the records lie (%(default)s)"
    )
    return parser
