"""Imported first by the program `wirebench`: until a verb runs, Ctrl-C ends the process silently.

Python's default is a traceback of the import that it interrupted.
"""

import signal
import sys
from pathlib import Path

PROGRAMS = ("wirebench", "__main__.py")

if Path(sys.argv[0]).name in PROGRAMS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
