"""How a run was launched, by its record, and how another command is launched like it."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from wirebench.cluster.signals import Interrupted, Relay, ends_with_parent

TORCHRUN = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
BIN = str(Path(sys.executable).parent)
LAST_LINES = 15
"""That are shown of a command that failed."""
OWN = {"python": [sys.executable], "wirebench": [sys.executable, "-m", "wirebench"]}
"""First words of a command that mean this interpreter and this program, whatever the PATH says."""


def launcher_of(record: dict[str, Any]) -> list[str]:
    """The words before train.py, or before `wirebench train`, in the command that was typed.

    [] where there are none, or another program ran.
    """
    words = shlex.split(record["environment"].get("command", ""))
    names = [Path(word).name for word in words]
    if "train.py" in names:
        return words[: names.index("train.py")]
    at = next((at for at, pair in enumerate(pairwise(names)) if pair == ("wirebench", "train")), 0)
    return words[: at - (names[at - 1 : at] == ["-m"])]


def training(launcher: Sequence[str]) -> list[str]:
    """The words that train behind a launcher's: torchrun takes a module, any other a program."""
    interpreter = without_interpreter(launcher)[1]
    module = interpreter or any(Path(word).name in TORCHRUN for word in launcher)
    return [*([] if module else ["python"]), "-m", "wirebench", "train"]


def without_interpreter(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """A launcher's words, and the interpreter behind them, if there is one: torchrun takes a script, most a program."""
    at = len(words) - (bool(words) and Path(words[-1]).name.startswith("python"))
    return list(words[:at]), list(words[at:])


def run(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, list[str]]:
    """Run a command to its end; its exit code and its last lines. A signal that ends this process ends it first.

    variables  are added to this process's environment
    """
    words = [*OWN.get(command[0], command[:1]), *command[1:]]
    path = os.pathsep.join([BIN, os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": path, **variables}
    with (
        Relay(),
        subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            preexec_fn=ends_with_parent(),
        ) as child,  # fmt: skip
    ):
        try:
            said = child.communicate()[0]
        except Interrupted:
            child.terminate()
            child.wait()
            raise
    return child.returncode, said.splitlines()[-LAST_LINES:]
