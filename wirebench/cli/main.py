"""wirebench VERB ...: look at runs, plan, emulate clusters, measure, study."""

import gc
import sys
from collections.abc import Sequence
from typing import NoReturn

import wirebench.cli.begun  # noqa: F401  first of all: until a verb runs, Ctrl-C ends the process without a word
from wirebench import __version__
from wirebench.cli.menu import Entry, Menu
from wirebench.comm.launch import end_process
from wirebench.utils.terminal import open_output

VERBS = {
    "jobs.train": "train a composition of model, compressor, scheduler and collective, and record it",
    "results.show": "print runs side by side",
    "results.table": "the results of a folder as a Markdown table",
    "results.submit": "check runs of yours by the rules of records, and pack them for the results here",
    "jobs.diagnose": "why a run is not faster: where its step goes, and what would help",
    "jobs.doctor": "before a run on several hosts: are they alike, do they reach each other, how fast",
    "jobs.torchrun": "torchrun, with ranks that are soon back after a restart: for train.elastic",
    "jobs.chaos": "inject faults into an elastic job on an emulated cluster, and say what they cost",
    "planning.demo": "in two minutes: what four compressors bring at three link rates, and what they cost",
    "planning.topology": "draw a cluster and what each collective sends over it",
    "planning.compat": "which compositions work, and why the others do not",
    "jobs.cluster": "emulate a cluster on this machine and run a command on it: run, up, down, status",
    "planning.simulate": "schedules of a model on a network, side by side",
    "planning.advise": "rank compositions for a model on a network",
    "planning.fit": "link speeds from measured all-reduces",
    "planning.trace": "make traces: estimate, reconstruct, import",
    "results.bench": "measure: collectives, compressors, overhead, checkpoints; draw what was measured",
    "results.study": "a paper's or a question's runs and report: study NAME run | report | check",
}
"""By the module of each verb, below wirebench.cli, what the verb does."""
MENU = Menu(
    "wirebench",
    str(__doc__),
    "verb",
    {module.split(".")[-1]: Entry(f"wirebench.cli.{module}", about) for module, about in VERBS.items()},
    "",
    __version__,
)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    return MENU.run(arguments)


def command() -> NoReturn:
    """The installed program; a rank of a job ends as ranks do."""
    open_output()
    # What imports make stays. Looking through it for garbage, again and again, is a tenth of the time of imports.
    gc.disable()
    end_process(main(sys.argv[1:]))
