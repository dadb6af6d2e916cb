"""The studies' command by its module, from the root of a checkout: python -m papers NAME run | report | check."""

import sys

from papers.cli import main
from wirebench.utils.cli import run_tool

if __name__ == "__main__":
    sys.exit(run_tool("papers", main, sys.argv[1:]))
