"""This program's own commands: in hints, as the user started it, and as words that start it whatever the PATH says."""

import sys
from collections.abc import Sequence
from pathlib import Path

from wirebench.utils.package import TOP

OWN = {"python": [sys.executable], "wirebench": [sys.executable, "-m", "wirebench"]}


def ours(words: Sequence[str]) -> list[str]:
    """A command whose first word `python` or `wirebench` means this interpreter or this program."""
    return [*OWN.get(words[0], words[:1]), *words[1:]]


def trainer(launched: bool = False) -> str:
    """What trains: `python train.py` where the user started that, else `wirebench train`. launched: by a launcher."""
    if Path(sys.argv[0]).name == "train.py":
        return "train.py" if launched else "python train.py"
    return "-m wirebench train" if launched else "wirebench train"


def set_up(folder: str = "") -> str:
    """How this installation was made, as words of a sentence; folder: the same on another host, quoted for a shell."""
    if (TOP / "Makefile").exists():
        return f"make setup in {folder}" if folder else "make setup"
    return "pip install wirebench"
