"""Measure parts of Wirebench, and draw what was measured.

wirebench cluster run --layout 2+3 --link 200mbit -- wirebench bench collectives --json FILE
wirebench bench compressors --sizes 14.7m --compressors topk none
"""

from collections.abc import Sequence

from wirebench.cli.menu import Entry, Menu

MENU = Menu(
    "wirebench bench",
    str(__doc__),
    "tool",
    {
        "collectives": Entry("wirebench.bench.collectives", "time all-reduces side by side, with a prediction"),
        "compressors": Entry("wirebench.bench.compressors", "time and memory of compressors, in multiples of a copy"),
        "pods": Entry("wirebench.bench.pods", "train a model that FSDP shards in pods, compressed between them"),
        "sums": Entry("wirebench.bench.sums", "the error of sums in few bits, by format, way and number of ranks"),
        "overhead": Entry("wirebench.bench.overhead", "compare our train step with DDP's or Horovod's"),
        "checkpoint": Entry("wirebench.bench.checkpoint", "what checkpoints cost a run that saves one every 50 steps"),
        "plot-collectives": Entry("wirebench.bench.plot_collectives", "figures of measured all-reduces"),
        "plot-compressors": Entry("wirebench.bench.plot_compressors", "figures of measured compressors"),
    },
)


def main(arguments: Sequence[str]) -> int:
    """Run the tool that the command line names; returns the exit code."""
    return MENU.run(arguments)
