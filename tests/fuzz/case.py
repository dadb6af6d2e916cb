"""What a case of damage is, and the settings that many share."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.distributed.launch import CONFIG

WHOLE = (str(CONFIG), "engine.workers=2", "train.max_steps=10")
"""How the run that is shared goes on to its end."""
SHORT = ("engine.workers=2", "train.max_steps=4", "output.tensorboard=false")


class Case(NamedTuple):
    """A command line, and what it means for its end.

    run    folder of the run, which has a record where the command says that all went well
    whole  folder of an unbroken run: one that went well ended like it
    """

    program: str
    words: list[str]
    run: Path | None = None
    whole: Path | None = None


Maker = Callable[[random.Random, Path, Path], Case]
"""From chance, an empty folder of its own, and the folder of what all cases share."""
