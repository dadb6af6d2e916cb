"""Measure parts of the suite itself, and draw what was measured.

wirebench cluster run --layout 2+3 --link 200mbit -- wirebench bench collectives --json FILE
wirebench bench compressors --sizes 14.7m --compressors topk none
"""

from collections.abc import Sequence

from suite.cli.menu import Entry, Menu

MENU = Menu(
    "wirebench bench",
    str(__doc__),
    "tool",
    {
        "collectives": Entry("suite.bench.collectives", "time all-reduces side by side, beside their prediction"),
        "compressors": Entry("suite.bench.compressors", "time and memory of compressors, in copies of the vector"),
        "overhead": Entry("suite.bench.overhead", "our train step beside DDP or Horovod's optimizer"),
        "input": Entry("suite.bench.input_pipeline", "the CIFAR-10 input pipeline beside training"),
        "plot-collectives": Entry("suite.bench.plot_collectives", "figures of measured all-reduces"),
        "plot-compressors": Entry("suite.bench.plot_compressors", "figures of measured compressors"),
    },
)


def main(arguments: Sequence[str]) -> int:
    """Run the tool that the command line names; returns the exit code."""
    return MENU.run(arguments)
