"""How a run was launched, by its record, and how another command is launched like it."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from wirebench.cluster.signals import Interrupted, Relay, ends_with_parent
from wirebench.comm.launch_command import is_torchrun
from wirebench.utils.own import ours

BIN = str(Path(sys.executable).parent)
LAST_LINES = 15
"""That are shown of a command that failed."""


class Started(NamedTuple):
    """How a run was started: the launcher's words, none for a run alone, the program's and its arguments, as typed."""

    launcher: list[str]
    program: list[str]
    arguments: list[str]

    def words(self, variables: Mapping[str, str]) -> list[str]:
        """What trains in the same way, of this installation: torchrun takes a module, any other launcher a program.

        variables  are given to the program with `env`: an emulated cluster tells its ranks their interface itself
        """
        interpreter = [next((word for word in self.program if _is_python(word)), "python")]
        own = [*([] if self._takes_module else interpreter), "-m", "wirebench", "train"]
        return [*self.launcher, *self._told(variables), *own]

    def shown(self, variables: Mapping[str, str], settings: Sequence[str]) -> list[str]:
        """The command as the user typed it, with the variables and settings, for a run into a folder of its own."""
        replaced = {setting.partition("=")[0] for setting in settings} | {"output.dir", "train.resume"}
        # The options that were typed belong to the plugin that was.
        others = tuple(key.removesuffix("name") for key in replaced if key.endswith(".name"))
        kept = [
            word
            for word in self.arguments
            if "=" not in word or not (word.partition("=")[0] in replaced or word.startswith(others))
        ]
        return [*self.launcher, *self._told(variables), *self.program, *kept, *settings]

    @property
    def _takes_module(self) -> bool:
        return is_torchrun(self.launcher)

    def _told(self, variables: Mapping[str, str]) -> list[str]:
        if not variables or self._takes_module:
            return []
        return ["env", *(f"{name}={value}" for name, value in variables.items())]


def started(record: dict[str, Any]) -> Started | None:
    """How the run was started, by the command in its record; None where another program than train.py ran."""
    words = shlex.split(record["environment"].get("command", ""))
    names = [Path(word).name for word in words]
    if "train.py" in names:
        begin = end = names.index("train.py")
    else:
        begin = next((at for at, pair in enumerate(pairwise(names)) if pair == ("wirebench", "train")), len(words))
        end = begin + 1
    if end >= len(words):
        return None
    begin -= names[begin - 1 : begin] == ["-m"]
    begin -= begin > 0 and _is_python(words[begin - 1])
    return Started(words[:begin], words[begin : end + 1], words[end + 1 :])


def _is_python(word: str) -> bool:
    return Path(word).name.startswith("python")


def run(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, list[str]]:
    """Run a command to its end; its exit code and its last lines. A signal that ends this process ends it first.

    variables  are added to this process's environment
    """
    path = os.pathsep.join([BIN, os.environ.get("PATH", os.defpath)])
    environment = {**os.environ, "PATH": path, **variables}
    with (
        Relay(),
        subprocess.Popen(
            ours(command),
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
