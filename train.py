#!/usr/bin/env python3
"""Train a composition, without an installed command: python train.py CONFIG.toml [section.key=value ...].

The program is wirebench/compose/startup.py and run.py, the loop wirebench/training/loop.py.
"""

import signal
import sys

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # First of all: Python would show which import Ctrl-C found it in.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import wirebench.utils.entered  # noqa: F401  first of all: says how to enter the environment
from wirebench.compose.startup import program

if __name__ == "__main__":
    program(sys.argv[1:])
