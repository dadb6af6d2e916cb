"""The hosts of a run, an agent on each, and how it is asked."""

import json
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from wirebench.errors import UserError
from wirebench.telemetry.environment import ROOT

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"
PATIENCE = 90.0
"""Seconds that an answer may take: importing torch from a slow disk is part of the first."""


class Unreachable(Exception):
    """A host that gives no answer; says why."""


def parse_hosts(words: Sequence[str]) -> list[str]:
    """The names in `h1:4,h2:4` or `h1 h2`, in order; UserError for anything else, or a host that comes twice."""
    parts = [part for word in words for part in word.split(",")]
    for part in parts:
        if not re.fullmatch(r"[\w.-]+(:\d+)?", part):
            raise UserError(f"{part!r} is no host; hosts read h1:4,h2:4 (as for horovodrun) or h1 h2")
    names = [part.partition(":")[0] for part in parts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{twice}: is named twice")
    return names


class Host:
    """One host with a running agent, in the same folder and with the same Python as here."""

    def __init__(self, name: str, ssh: str = SSH) -> None:
        self.name = name
        inside = f"cd {shlex.quote(str(ROOT))} && exec {shlex.quote(sys.executable)} -m suite.doctor.agent"
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the host
        try:
            self._agent = subprocess.Popen(
                [*shlex.split(ssh), name, inside],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            )  # fmt: skip
        except OSError as error:
            raise UserError(f"--ssh: {shlex.split(ssh)[0]} cannot be started: {error.strerror}") from error

    def ask(self, what: str, **more: Any) -> Any:
        """The agent's answer; Unreachable where it has gone or is silent, OSError where it says what went wrong."""
        assert self._agent.stdin and self._agent.stdout
        watch = threading.Timer(PATIENCE, self._agent.kill)
        watch.start()
        try:
            self._agent.stdin.write(json.dumps({"ask": what, **more}) + "\n")
            self._agent.stdin.flush()
            line = self._agent.stdout.readline()
            told = json.loads(line)
        except (BrokenPipeError, json.JSONDecodeError):
            raise Unreachable(self._last_words()) from None
        finally:
            watch.cancel()
        if "error" in told:
            raise OSError(told["error"])
        return told["answer"]

    def clock_ahead(self, times: int = 5) -> float:
        """Seconds by which its clock is ahead of ours, from the question that was answered soonest."""
        trips = []
        for _ in range(times):
            begin = time.time()
            theirs = self.ask("clock")
            end = time.time()
            trips.append((end - begin, theirs - (begin + end) / 2))
        return min(trips)[1]

    def close(self) -> None:
        """The agent ends when nobody asks any more."""
        for pipe in (self._agent.stdin, self._agent.stdout):
            # A question that never reached an agent that has gone waits in the pipe, and would be sent once more.
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        try:
            self._agent.wait(5)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            self._agent.wait()
        self._errors.close()

    def _last_words(self) -> str:
        try:
            code: int | None = self._agent.wait(5)
        except subprocess.TimeoutExpired:
            self._agent.kill()
            code = None
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors if line.strip()]
        return lines[-1] if lines else f"its agent ended with code {code}" if code else f"no answer in {PATIENCE:.0f} s"
