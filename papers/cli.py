"""A paper's or a question's runs and report.

  wirebench study                                      all studies, a line each
  wirebench study flexreduce run --layouts 2+3         make its runs that are not there yet (--again: all)
  wirebench study gs_sgd run --launch WORDS --dry-run  a paper's own experiments on a cluster of your own
  wirebench study flexreduce report                    its table and figures from what was measured
  wirebench study flexreduce check                     whether the committed tables match their records
  wirebench study run flexreduce planner               all parts of these studies' runs that are not there yet
  wirebench study run --quick                          a short version of all studies' runs, in half an hour
  wirebench study report --docs .                      all studies' tables and figures, and what documents say of them
  wirebench study check                                all tables against their records, which are checked against
                                                       the rules of trust
  wirebench study publish                              write what the package ships of the records: the planner's rates,
                                                       ranges and accuracies, and reference runs

`wirebench study NAME run --help` lists the flags of a study.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from papers import launched
from papers.committed import breaches, runs_of
from papers.launched import Parts
from papers.page import Page
from papers.repository import history, lost_runs
from papers.runner import RESULTS, ROOT, Launch
from papers.runner import run as launch_command
from papers.series import INPUTS, run_all
from papers.study import Study, available
from wirebench.errors import UserError
from wirebench.utils import user_files
from wirebench.utils.cli import parser_of, run_tool
from wirebench.utils.names import suggest

HELP = ("-h", "--help")
CHECK, PUBLISH, REPORT, RUN = "check", "publish", "report", "run"
LAUNCH, QUICK = "--launch", "--quick"


def main(arguments: Sequence[str], launch: Launch = launch_command) -> int:
    """Run the command line; returns the exit code: 1 where a run failed, or a table does not match its records."""
    if not arguments or arguments[0] in HELP:
        print(usage())
        return 0
    of_all: dict[str, Callable[[Sequence[str]], int]] = {
        CHECK: check_all,
        REPORT: report_all,
        PUBLISH: publish,
        RUN: lambda rest: make_all(rest, launch),
    }
    if arguments[0] in of_all:
        return run_tool(f"wirebench study {arguments[0]}", of_all[arguments[0]], arguments[1:])
    _check_name(arguments[0])
    study, words = Study(arguments[0]), list(arguments[1:])
    if not words or words[0] in HELP:
        print(about(study))
        return 0
    actions: dict[str, Callable[[Study, Sequence[str]], int]] = {
        RUN: lambda study, rest: run(study, rest, launch),
        REPORT: report,
        CHECK: check,
    }
    if words[0] not in actions:
        raise UserError(f"no {words[0]!r} of a study; {suggest(words[0], list(actions))}")
    return run_tool(f"wirebench study {study.name} {words[0]}", lambda rest: actions[words[0]](study, rest), words[1:])


def _check_name(name: str) -> None:
    """UserError for a study of ours that there is not; one of the user's own goes by its dotted name."""
    if "." not in name and name not in available():
        raise UserError(f"no study {name!r}; {suggest(name, [*available(), RUN, REPORT, CHECK, PUBLISH])}")


def usage() -> str:
    """All studies, a line each."""
    names = available()
    width = max(map(len, names))
    return "\n".join([str(__doc__), *(f"  {name:{width}}  {Study(name).published.about}" for name in names)])


def about(study: Study) -> str:
    """A study's source and claims."""
    published = study.published
    head = [f"{study.name}: {published.about}", '{authors}, "{title}", {published}'.format(**published.source)]
    claims = [f"  {claim.id}: {claim.text}: {claim.figure()} ({claim.where})" for claim in published.claims.values()]
    others = [f"  no claim: {each.text} ({each.where}): {each.why}" for each in published.excluded]
    return "\n".join([*head, *claims, *others, f"wirebench study {study.name} run | report | check"])


def run(study: Study, arguments: Sequence[str], launch: Launch) -> int:
    """Make the runs that are not there yet; 1 where one failed."""
    _ = study.published  # a mistake in it is told now rather than by the report
    parts: Parts = getattr(study.runs, "ON_CLUSTER", {})
    away = bool(parts) and any(word.partition("=")[0] == LAUNCH for word in arguments)
    parser = _parser(f"{study.name} run", launched.__doc__ if away else study.runs.__doc__)
    if away:
        launched.flags(parser, parts)
    else:
        study.runs.flags(parser)
        if parts:
            more = f"on a cluster of your own instead: {LAUNCH}= --help says how"
            parser.add_argument(LAUNCH, metavar="WORDS", help=more)
    parser.add_argument("--again", action="store_true", help="also the runs that are there already")
    if QUICK not in parser.format_help():  # a study may have one of its own
        if QUICK in arguments and not any(word in HELP for word in arguments):
            return _make_short(study, arguments, launch)
        parser.add_argument(
            QUICK, action="store_true", help="a short version instead, into the folder WIREBENCH_RESULTS"
        )
    options = parser.parse_args(arguments)
    failed = launched.run(parts, options, launch) if away else study.runs.run(options, launch)
    if failed:
        print(f"wirebench study {study.name} run: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def report(study: Study, arguments: Sequence[str]) -> int:
    """Write the tables and figures, or print the tables."""
    parser = _parser(f"{study.name} report", study.report.__doc__)
    study.report.flags(parser)
    parser.add_argument("--print", action="store_true", help="print the table, write nothing")
    options = parser.parse_args(arguments)
    for page in study.pages(options):
        if options.print:
            print(page.words)
        else:
            page.write()
            print(f"{page.path}: {page.said}" if page.said else page.path)
    return 0


def check(study: Study, arguments: Sequence[str]) -> int:
    """Print, a line each, which tables differ from what their records give; return 1 if any does. Nothing is written.

    arguments  a report's flags, for its tables instead of those under version control
    """
    parser = _parser(f"{study.name} check", study.report.__doc__)
    study.report.flags(parser)
    options = [parser.parse_args(arguments)] if arguments else study.committed()
    pages = [page for each in options for page in study.pages(each)]
    drifted = [said for said in map(Page.drift, pages) if said is not None]
    for said in drifted:
        print(said)
    if not pages:
        print(f"{study.name} has no table yet: nothing was measured (wirebench study {study.name} run)")
    elif not drifted:
        print(
            "the table is that of its records" if len(pages) == 1 else f"{len(pages)} tables are those of their records"
        )
    return 1 if drifted else 0


def check_all(arguments: Sequence[str]) -> int:
    """Every table against its records, and every record against the rules of trust; 1 where something is wrong."""
    parser = _parser("check", check_all.__doc__)
    parser.add_argument("--since", metavar="COMMIT", help="also that no run went or changed since this commit")
    options = parser.parse_args(arguments)
    gone = [] if options.since is None else lost_runs(ROOT, options.since, RESULTS)
    for path in gone:
        print(f"{path}: lost or changed a run since {options.since}; runs are only added")
    repository = history(ROOT)
    if repository.commits is None:
        print("commits are not checked: this checkout has no history, or a part of it (git fetch --unshallow)")
    broken = breaches(RESULTS, repository)
    for breach in broken:
        print(breach.words(RESULTS))
    if any(breach.rule == "schema" for breach in broken):
        return 1  # no table can be made of what cannot be read
    from papers.accuracy import known  # what only tables need takes a second to import
    from papers.site import committed

    # No breach: of runs that do not differ from their references one in a hundred is flagged, too.
    for path, said in known.flagged(runs_of(RESULTS)):
        print(f"{path.relative_to(RESULTS)}: flagged: {said}")
    drifted = committed.drifts(ROOT, RESULTS)
    for line in drifted:
        print(line)
    if not drifted:
        print("all tables and the documents are those of their records")
    return 1 if gone or broken or drifted else 0


def publish(arguments: Sequence[str]) -> int:
    """Write what the package ships of the records, where it is not what they give."""
    from papers import shipped  # what only this needs takes a second to import

    _parser("publish", publish.__doc__).parse_args(arguments)
    for line in [str(path) for path in shipped.publish()] or ["all files are those of their records"]:
        print(line)
    return 0


def make_all(arguments: Sequence[str], launch: Launch) -> int:
    """Make all studies' runs that are not there yet; 1 where one failed. WIREBENCH_RESULTS names another folder."""
    parser = _parser("run", make_all.__doc__)
    parser.add_argument("names", nargs="*", metavar="STUDY", help="only these")
    _whole_flags(parser)
    options = parser.parse_args(arguments)
    for name in options.names:
        _check_name(name)
    return _make(options.names, options, launch)


def _make_short(study: Study, arguments: Sequence[str], launch: Launch) -> int:
    """Make the short version of a study's runs; UserError for an option that would change it."""
    parser = _parser(f"{study.name} run", make_all.__doc__)
    _whole_flags(parser)
    for option in (word.partition("=")[0] for word in arguments):
        if option.startswith("--") and option.removeprefix("--") not in (*INPUTS, QUICK.removeprefix("--")):
            raise UserError(f"{option}: not with {QUICK}, whose short runs are always the same")
    return _make([study.name], parser.parse_args(arguments), launch)


def _whole_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(QUICK, action="store_true", help="a short version of every study, half an hour in all")
    for name, about in INPUTS.items():
        parser.add_argument(f"--{name}", type=Path, metavar="FOLDER", help=about)


def _make(names: Sequence[str], options: argparse.Namespace, launch: Launch) -> int:
    """Make the runs of these studies, without names of all, by `_whole_flags`; 1 where one failed."""
    if options.quick and RESULTS == ROOT / "results":
        raise UserError(f"{QUICK}: short runs are no results: WIREBENCH_RESULTS=FOLDER names a place for them")
    inputs = {name: getattr(options, name) for name in INPUTS}
    failed = run_all(options.quick, inputs, launch, names)
    if failed:
        print(f"wirebench study run: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def report_all(arguments: Sequence[str]) -> int:
    """Write every study's tables and figures, and the figure of all verdicts."""
    from papers import index
    from papers.site import content, readme, reproduce  # what only these need takes a second
    from wirebench.figures.files import save

    parser = _parser("report", report_all.__doc__)
    about = f"also {readme.FILE}'s verdicts and {reproduce.FILE}, of this checkout"
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help=about)
    options = parser.parse_args(arguments)

    sections = content.gather()
    for section in sections:
        for page in section.pages:
            page.write()
            print(page.path)
        if section.missing:
            print(f"{section.name}: no table: {section.missing}", file=sys.stderr)
    print(save(readme.verdicts(sections), RESULTS / readme.FIGURE))
    if not index.is_current():  # another release of zlib packs it into other bytes
        user_files.write(index.FILE, index.text())
    print(index.FILE)
    if options.docs:
        guide, rows = options.docs / readme.FILE, options.docs / reproduce.FILE
        user_files.write(guide, readme.text(sections, guide))
        user_files.write(rows, reproduce.text(sections, rows))
        print(guide, rows, sep="\n")
    return 0


def _parser(action: str, doc: str | None) -> argparse.ArgumentParser:
    """Options are not shortened here: `--quic` for another option would make runs of hours."""
    parser = parser_of(f"study {action}", doc)
    parser.allow_abbrev = False
    return parser
