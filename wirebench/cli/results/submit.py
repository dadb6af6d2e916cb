"""Check runs of yours by the rules of records, show what a maintainer sees, and pack them for results/.

wirebench submit results/runs/dense-0 results/runs/dense-1 results/runs/dense-2 --claim accuracy
wirebench submit submission.jsonl --into results/contributed

A run counts only with the commit that made it: train in a clone without changes, not with an installed wheel. A clone's
docs/contributing-results.md has all steps, and its docs/studies.md the rules.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from wirebench.errors import UserError
from wirebench.record import compare, recorded, submission
from wirebench.record.notes import NotedRun
from wirebench.record.rules import DAMAGED
from wirebench.record.submission import CLAIMS, Submitted
from wirebench.utils.cli import check_outputs, parser_of
from wirebench.utils.files import write_atomically


def main(arguments: Sequence[str]) -> int:
    """Check, print, and write the file or add the runs."""
    options = _parser().parse_args(arguments)
    if options.into is None:
        check_outputs(reads=options.runs, out=options.out)
    runs = submission.gathered(options.runs, options.claim, options.series)
    if broken := submission.breaches(runs):
        first, *others = [f"{name}: {mistake.rule}: {mistake.how}" for name, mistake in broken]
        for line in others:
            print(line, file=sys.stderr)
        raise UserError(first)
    print(_verdict(runs), "", *_table(runs), "", sep="\n")
    if options.into is None:
        write_atomically(options.out, recorded.packed(run for _, run in runs))
        print(f"{options.out}: in a clone, wirebench submit {options.out} --into results/contributed adds it")
    else:
        added = _add(options.into, runs)
        there = f", {len(runs) - added} were there already" if added < len(runs) else ""
        print(f"{options.into / recorded.RUNS}: {added} more{there}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("submit", __doc__)
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder, or a file that submit wrote")
    add("--claim", choices=CLAIMS, help="what the runs are to show, which says how many it takes: 5 turns for a speed, "
        "3 seeds for an accuracy, 1 run for counts of bytes (accuracy where seeds differ, else speed)")  # fmt: skip
    add(
        "--series",
        default="",
        metavar="NAME",
        help="folder of these runs in results (a file's runs: theirs; else config and time of the first)",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, default=Path("submission.jsonl"), metavar="FILE", help="(%(default)s)")
    where.add_argument("--into", type=Path, metavar="FOLDER", help="add the runs to this folder of results instead")
    return parser


def _verdict(runs: Sequence[Submitted]) -> str:
    compositions = {(run.folder.parent, run.composition) for _, run in runs}
    claims = sorted({run.note["claim"] for _, run in runs})
    count = f"{len(runs)} run{'s' * (len(runs) > 1)} of {len(compositions)} composition{'s' * (len(compositions) > 1)}"
    verb = "keeps" if len(runs) == 1 else "keep"
    return f"{count} {verb} all rules that can be asked of them, for a claim about {' and '.join(claims)}"


def _table(runs: Sequence[Submitted]) -> list[str]:
    """What a maintainer sees of each run."""
    rows = [_row(each) for each in runs]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _row(submitted: Submitted) -> dict[str, str]:
    source, run = submitted
    try:
        told, named = compare.rows(run.record), run.record.get("edition")
        return {
            "run": str(run.folder),
            "edition": f"{named['name']} {named['task']}" if named else "none",
            "machine": run.machine,
            "commit": run.commit,
            "seed": str(run.has("config", "train", "seed")),
            "step ms": told.get("step ms [p10 - p90]", compare.MISSING),
            "ratio": told.get("ratio wire", compare.MISSING),
            "top1": told.get("top1", compare.MISSING),
        }
    except DAMAGED as error:
        raise UserError(f"{source}: {run.folder}: is no record of a run: {error!r}") from error


def _add(folder: Path, runs: Sequence[Submitted]) -> int:
    """Add the runs that are not there, as after an interrupted call; how many."""
    missing: list[NotedRun] = []
    for _, run in runs:
        there = recorded.at(folder / run.folder)
        if there is None:
            missing.append(run)
        elif not recorded.same(there, run):
            raise UserError(
                f"--into: {folder / run.folder} is there already, another run; --series gives these another folder"
            )
    for run in missing:
        recorded.add(folder, run)
    return len(missing)
