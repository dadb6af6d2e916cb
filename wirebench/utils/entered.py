"""Imported first by train.py: outside of the environment, one line says how to enter it, and the process ends.

Nothing but the standard library is imported here, nor anything that an older Python could not read.
"""

import importlib.util
import shlex
import sys
from pathlib import Path

from wirebench.errors import UserError
from wirebench.utils.package import TOP

NEEDED = ("tomllib", "torch", "numpy", "psutil", "rich", "safetensors", "tomli_w")
"""What train.py cannot start without: tomllib comes with Python 3.11, the others with the set-up."""


def advice(root: Path, here: Path) -> str:
    """How to enter the environment of the repository `root` from the folder `here`."""
    prefix = "" if here == root else f"cd {shlex.quote(str(root))} && "
    set_up = "" if (root / ".venv/bin/activate").exists() else "make setup && "
    return f"{prefix}{set_up}source .venv/bin/activate"


def check() -> None:
    """End this process, with exit code 2, where a module is missing that the environment has."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        what = f"{sys.executable} has no {missing[0]}: it is not this project's environment"
        sys.stderr.write(f"error: {what}; enter that with: {advice(TOP, Path.cwd())}\n")
        sys.exit(UserError.exit_code)


check()
