"""Make traces: what a training step takes, layer by layer. docs/traces.md has their format.

wirebench trace estimate --model resnet50 --gpu v100 --batch 32 --out resnet50_v100.json
wirebench trace import trace.json --model "my net" --batch 64 --out mine.json
"""

from collections.abc import Sequence

from wirebench.cli.menu import Entry, Menu

MENU = Menu(
    "wirebench trace",
    str(__doc__),
    "tool",
    {
        "estimate": Entry("wirebench.traces.estimate", "of a model on a GPU that is not at hand"),
        "reconstruct": Entry("wirebench.traces.reconstruct", "of a model's shape and the time of its whole step"),
        "import": Entry("wirebench.traces.import_file", "of a PyTorch profiler's file, or of a log of B-Caffe"),
    },
)


def main(arguments: Sequence[str]) -> int:
    """Run the tool that the command line names; returns the exit code."""
    return MENU.run(arguments)
