"""wirebench VERB ...: look at runs, plan, emulate clusters, measure, study."""

import sys
from collections.abc import Sequence
from typing import NoReturn

from suite.cli.menu import Entry, Menu
from wirebench.comm.launch import end_process
from wirebench.utils.terminal import open_output

VERBS = {
    "show": "print runs side by side",
    "table": "the results of a folder as a Markdown table",
    "diagnose": "why a run is not faster: where its step goes, and what would help",
    "doctor": "before a run on several hosts: are they alike, do they reach each other, how fast",
    "torchrun": "torchrun, with ranks that are soon back after a restart: for train.elastic",
    "chaos": "inject faults into an elastic job on an emulated cluster, and say what they cost",
    "topology": "draw a cluster and what each collective sends over it",
    "compat": "which compositions work, and why the others do not",
    "cluster": "emulate a cluster on this machine and run a command on it: run, up, down, status",
    "simulate": "schedules of a model on a network, side by side",
    "advise": "rank compositions for a model on a network",
    "fit": "link speeds from measured all-reduces",
    "trace": "make traces: estimate, reconstruct, import",
    "bench": "measure: collectives, compressors, overhead, input; draw what was measured",
    "study": "a paper's or a question's runs and report: study NAME run | report | check",
}
MENU = Menu(
    "wirebench",
    str(__doc__),
    "verb",
    {name: Entry(f"suite.cli.{name}", about) for name, about in VERBS.items()},
    "Training itself is python train.py CONFIG.toml.",
)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    return MENU.run(arguments)


def command() -> NoReturn:
    """The installed program; a rank of a job ends as ranks do."""
    open_output()
    end_process(main(sys.argv[1:]))
