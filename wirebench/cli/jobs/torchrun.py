r"""Run torchrun with ranks that are soon back after a restart: for train.elastic.

  wirebench torchrun --nnodes 2:4 --max-restarts 20 --rdzv-backend c10d --rdzv-endpoint h0:29400 train.py mine.toml
  wirebench torchrun --standalone --nproc-per-node 4 --max-restarts 20 -m wirebench train smoke \
      train.elastic=true output.dir=results/runs/elastic

Options, script and its settings are torchrun's, which torchrun --help explains. docs/elastic.md says what differs.
"""

import argparse
from collections.abc import Sequence

from wirebench.training.elastic.torchrun import launch
from wirebench.utils.cli import parser_of

PRELOADED = ("wirebench.compose.run",)


def main(arguments: Sequence[str]) -> int:
    """Run torchrun; where a rank fails for good, return its exit code after its report."""
    parser = parser_of("torchrun", __doc__)
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="OPTIONS train.py CONFIG.toml", help="torchrun's")
    if not arguments or {"-h", "--help"} & set(arguments):
        parser.parse_args(["--help"])
    return launch(arguments, PRELOADED)
