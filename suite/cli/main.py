"""wirebench VERB ...: look at runs, plan, emulate clusters, measure, study.

Each verb is a module of this package that is imported when it is called; `wirebench VERB --help` explains it.
"""

import difflib
import importlib
import sys
from collections.abc import Callable, Sequence

from wirebench.errors import UserError
from wirebench.utils.cli import run_tool

Tool = Callable[[Sequence[str]], int]

VERBS = {
    "show": "print runs side by side",
    "table": "the results of a folder as a Markdown table",
    "topology": "draw a cluster and what each collective sends over it",
    "compat": "which compositions work, and why the others do not",
    "cluster": "emulate a cluster on this machine and run a command on it",
    "simulate": "schedules of a model on a network, side by side",
    "advise": "rank compositions for a model on a network",
    "fit": "link speeds from measured all-reduces",
    "trace": "make traces: estimate, reconstruct, import",
    "bench": "measure: collectives, compressors, overhead, input",
    "study": "a paper's or a question's runs and report: study NAME run | report | check",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    return run_tool(f"wirebench {words[0]}", lambda rest: _verb(words[0])(rest), words[1:])


def usage() -> str:
    """What `wirebench --help` prints."""
    width = max(map(len, VERBS))
    lines = [str(__doc__), *(f"  {name:{width}}  {about}" for name, about in VERBS.items())]
    return "\n".join([*lines, "", "Training itself is `python train.py CONFIG.toml`."])


def _verb(name: str) -> Tool:
    if name not in VERBS:
        near = difflib.get_close_matches(name, VERBS, 1)
        guess = f"did you mean {near[0]}? " if near else ""
        raise UserError(f"no such verb; {guess}there are {', '.join(VERBS)}")
    tool: Tool = importlib.import_module(f"suite.cli.{name}").main
    return tool
