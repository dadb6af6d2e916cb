"""wirebench study in the test's own process, with a stand-in for what it launches."""

from collections.abc import Callable, Sequence

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
