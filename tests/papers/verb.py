"""wirebench study in the test's own process, with a stand-in for what it launches."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from papers import cli as study
from papers.runner import Command, Launch


def nothing(command: Command) -> int:
    """Nothing may be launched."""
    raise AssertionError(command)


def run(name: str) -> Callable[[Sequence[str], Launch], int]:
    """What makes the runs of a study; returns the exit code."""
    return lambda arguments, launch: study.main([name, "run", *arguments], launch)


def report(name: str) -> Callable[[Sequence[str]], int]:
    """What writes the reports of a study; returns the exit code."""
    return lambda arguments: study.main([name, "report", *arguments], nothing)


class Trains:
    """Stands in for what runs train.py: leaves a record in the folder of each command, and keeps the command.

    of    makes the record, None for none, of a command's words KEY=VALUE; code: what the command returns
    """

    def __init__(self, of: Callable[[Mapping[str, str]], Mapping[str, Any] | None], code: int = 0) -> None:
        self.of, self.code = of, code
        self.commands: list[Command] = []
        self.started: list[str] = []

    def __call__(self, command: Command) -> int:
        """Note the command, and leave its record."""
        told = dict(word.split("=", 1) for word in command if "=" in word)
        folder = Path(told["output.dir"])
        folder.mkdir(parents=True, exist_ok=True)
        self.commands.append(command)
        self.started.append(f"{folder.parent.name}/{folder.name.removeprefix('.').removesuffix('.part')}")
        made = self.of(told)
        if made is not None:
            (folder / "record.json").write_text(json.dumps(made))
        return self.code
